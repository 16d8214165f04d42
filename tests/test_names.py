"""One word for one thing: a class name means one class in both packages."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import normscope
import normscope_lab

PACKAGES = [Path(package.__file__).parent for package in (normscope, normscope_lab)]
EVERYWHERE = {"NormscopeCallback"}
"""What users import from `callbacks.lightning` and from `callbacks.huggingface`: one name for one purpose."""


def test_class_names_are_unique():
    found = defaultdict(list)
    for path in (path for package in PACKAGES for path in package.rglob("*.py")):
        for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE):
            found[name].append(str(path))
    assert len(found) > 300
    assert not {name: where for name, where in found.items() if len(where) > 1 and name not in EVERYWHERE}
