"""Sphinx configuration."""

import sys
from pathlib import Path

import normscope

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "Normscope"
author = "the Normscope developers"
copyright = "2026, the Normscope developers"
version = release = normscope.__version__

extensions = [
    "beside_page",
    "myst_parser",
    "operators_table",
    "result_plots",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "examples", "guides/*.rst", "guides/*.py"]
templates_path = ["_templates"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
suppress_warnings = ["config.cache"]  # the gallery holds a class, which Sphinx cannot keep between builds

default_role = "literal"  # docstrings quote code with single backquotes
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autosummary_generate = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False  # a return value is a sentence here, not a type
napoleon_custom_sections = [("Assumes", "notes_style"), ("Reference", "notes_style")]

html_theme = "furo"
html_title = f"Normscope {release}"
html_static_path = ["_static"]
html_css_files = ["width.css"]

sphinx_gallery_conf = {
    "examples_dirs": ["guides", "examples"],
    "gallery_dirs": ["gallery/guides", "gallery/functions"],
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "backreferences_dir": "gallery/backreferences",
    "doc_module": ("normscope",),
    "inspect_global_variables": False,
    "abort_on_example_error": True,  # a guide that fails ends the build at once
    "download_all_examples": False,
    "ignore_repr_types": r"matplotlib\.",  # axes that a plot returns: the picture is shown, their repr is not
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
}
