"""Two wheels from one repository: each holds its own package, whole, and nothing of the other."""

import re
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]


def build(project: Path, folder: Path) -> dict[str, bytes]:
    """Return the files of a project's wheel, by their names."""
    (wheel,) = WheelBuilder(str(project)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def source(package: str) -> set[str]:
    """Return the files of a package in the repository, as a wheel names them."""
    files = (ROOT / "src" / package).rglob("*")
    return {path.relative_to(ROOT / "src").as_posix() for path in files if path.is_file() and path.suffix != ".pyc"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("wheels")
    return build(ROOT, folder), build(ROOT / "lab", folder)


def packaged(wheel: dict[str, bytes]) -> set[str]:
    return {name for name in wheel if ".dist-info/" not in name}


def test_each_wheel_holds_its_own_package(wheels):
    instrument, lab = wheels
    script = {f"normscope/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "tools/verify").rglob("*.py")}
    assert packaged(instrument) == source("normscope") | source("normscope_faults") | script
    assert packaged(lab) == source("normscope_lab") | {"normscope_lab/LICENSE"}


def test_the_command_finds_the_lab_through_the_entry_point_of_its_wheel(wheels):
    instrument, lab = (
        {name.partition("/")[2]: text.decode() for name, text in wheel.items() if ".dist-info/" in name}
        for wheel in wheels
    )
    assert "[normscope.commands]\nlab = normscope_lab.cli:app" in lab["entry_points.txt"]
    assert "normscope.commands" not in instrument["entry_points.txt"]
    versions = {re.search(r"^Version: (.*)$", wheel["METADATA"], re.MULTILINE).group(1) for wheel in (instrument, lab)}
    assert len(versions) == 1
    assert re.search(r"^Requires-Dist: normscope-lab; extra == 'lab'$", instrument["METADATA"], re.MULTILINE)
