"""The checker stands alone: NumPy, python-flint and the standard library, nothing of what it checks."""

import ast
import subprocess
import sys

import torch

import normscope as ns

from .proofs import SCRIPT

ALLOWED = {
    *(
        "__future__",
        "argparse",
        "collections",
        "dataclasses",
        "functools",
        "hashlib",
        "io",
        "itertools",
        "json",
        "math",
        "re",
    ),
    *("flint", "normscope_verify", "numpy", "os", "re", "sys", "typing", "zipfile"),
}


def test_it_imports_numpy_flint_and_the_standard_library_alone():
    imported = set()
    files = sorted(SCRIPT.rglob("*.py"))
    assert len(files) > 5
    for node in (node for file in files for node in ast.walk(ast.parse(file.read_text()))):
        if isinstance(node, ast.Import):
            imported |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level <= 1
            imported |= set() if node.level else {str(node.module).split(".")[0]}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec", "__import__", "compile")
    assert imported <= ALLOWED


def test_it_runs_where_nothing_else_can_be_imported(tmp_path):
    path = tmp_path / "norm.npz"
    ns.spectral_norm(torch.tensor([[3.0, 1.0], [0.0, 2.0]])).save(path)
    code = f"""
import runpy, sys
class Refuse:
    def find_spec(self, name, *_):
        if name.split(".")[0] in ("normscope", "torch", "scipy", "sympy"):
            raise ImportError(f"the checker asked for {{name}}")
sys.meta_path.insert(0, Refuse())
sys.argv = ["verify", {str(path)!r}]
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("VERIFIED") == 2
