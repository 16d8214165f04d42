"""The examples in the docstrings of the room run."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["activations", "recognition", "normalizers", "pointwise", "lemmas"])
def test_examples_run(name):
    module = importlib.import_module(f"normscope.theory.{name}")
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
