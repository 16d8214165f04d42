"""Sphinx configuration."""

import sys
from pathlib import Path

import normscope

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "Normscope"
author = "the Normscope developers"
version = release = normscope.__version__

extensions = [
    "myst_parser",
    "operators_table",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "examples"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

default_role = "literal"  # docstrings quote code with single backquotes
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Assumes", "notes_style"), ("Reference", "notes_style")]

html_theme = "alabaster"
html_theme_options = {"description": "Lipschitz brackets for PyTorch models, with the evidence for each figure"}

sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,
}
