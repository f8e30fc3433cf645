"""How the site is built. No network is needed, and a warning is an error (see `make docs`)."""

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import layers  # noqa: E402
import torch  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

import pathspace  # noqa: E402

# The networks of the gallery are small: threads gain nothing, and cost much on a busy machine.
torch.set_num_threads(1)

project = "pathspace"
author = "The pathspace authors"
project_copyright = author
version = release = pathspace.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "reference",  # docs/reference.py
]
exclude_patterns = ["_build", "generated", "gallery/**/*.ipynb", "sg_execution_times.rst"]
nitpicky = True  # a reference that leads nowhere is an error ...
nitpick_ignore_regex = [
    # ... unless it leads out of the package: the site is built without a network.
    (r"py:.*", r"(?!pathspace\b)[a-z_]\w*\..*"),  # torch.Tensor, collections.abc.Sequence
]
default_role = "literal"  # `name` in a docstring is a name

# Pages --------------------------------------------------------------------------------------------

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 4  # [text](page.md#a-heading), with the anchors that GitHub gives
myst_dmath_double_inline = True
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"

# Reference ----------------------------------------------------------------------------------------

autosummary_generate = False  # the pages of docs/api are written by concept; tables only
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autoclass_content = "class"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

# Examples -----------------------------------------------------------------------------------------

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",  # all of them are run
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "doc_module": ("pathspace",),
    "reference_url": {"pathspace": None},
    "show_memory": False,
    "write_computation_times": False,  # they differ from build to build
    "show_signature": False,
}

# Look ---------------------------------------------------------------------------------------------

# Formulas are set by MathJax in the reader's browser, from a file of the site: MathML alone is
# poor where no mathematical font is installed, and pictures need LaTeX. The package brings
# MathJax as it is released, 24 MB; this one script of it is complete in itself, fonts included.
MATHJAX = "tex-svg-full.js"
_package = importlib.util.find_spec("sphinx-mathjax-offline")
assert _package is not None
assert _package.origin is not None
html_static_path = ["_static", str(Path(_package.origin).parent / "static/mathjax" / MATHJAX)]
mathjax_path = MATHJAX

html_theme = "furo"
html_title = "pathspace"
html_css_files = ["pathspace.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"


layers.write(HERE / "generated")


def list_reproductions(app: Sphinx, page: str, source: list[str]) -> None:
    """Hang the pages that `pathspace reproduce` writes below the list that it writes."""
    if page == "reproductions/README":
        source[0] += "\n```{toctree}\n:glob:\n:hidden:\n\n*/README\n```\n"


def setup(app: Sphinx) -> None:
    app.connect("source-read", list_reproductions)
