"""The notebooks of the documentation run, and every result in them shows itself as a page."""

import os
from pathlib import Path

import pytest

import normscope

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))
SHOWN = {
    "ns.check(": "Check of",
    'ns.Run("runs/first")': "measured",
    "audit = ns.audit(": "Audit of after",
    "ns.compare(": "Comparison of before and after",
    "ns.hessian(": "eigenvalue",
}
"""By a part of a cell: words that the page behind it has."""


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_its_results(path, tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    source = str(Path(normscope.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH", "")))))
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "keep notebooks without their output"
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for part, words in SHOWN.items():
        (cell,) = (cell for cell in notebook.cells if cell.cell_type == "code" and part in cell.source)
        pages = [output["data"]["text/html"] for output in cell.outputs if "text/html" in output.get("data", {})]
        assert len(pages) == 1, part
        assert words in pages[0], part
        assert len(pages[0]) < 2_000_000
