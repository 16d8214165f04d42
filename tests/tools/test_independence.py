"""The checker stands alone: NumPy and the standard library, nothing of what it checks."""

import ast
import subprocess
import sys

import torch

import normscope as ns

from .proofs import SCRIPT

ALLOWED = {
    *("__future__", "argparse", "collections", "dataclasses", "functools", "hashlib", "itertools", "json", "math"),
    *("numpy", "sys", "typing", "zipfile"),
}


def test_the_script_imports_numpy_and_the_standard_library_alone():
    imported = set()
    for node in ast.walk(ast.parse(SCRIPT.read_text())):
        if isinstance(node, ast.Import):
            imported |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(str(node.module).split(".")[0])
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
sys.argv = ["verify.py", {str(path)!r}]
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("VERIFIED") == 2
