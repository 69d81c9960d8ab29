"""The site, as Sphinx builds it from the checkout: `bash run.sh docs`.

The source folder is the checkout, so that links of the pages to notebooks, sources and pictures are the same on the
site and in the repository.
"""

from __future__ import annotations

import re
import shutil
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from latex2mathml.converter import convert
from pygments.lexer import inherit
from pygments.lexers.shell import BashLexer, BashSessionLexer
from pygments.token import Name
from sphinx.application import Sphinx

CHECKOUT = Path(__file__).resolve().parent.parent

project, author = "distsgd", "the authors of distsgd"
copyright = "the authors of distsgd; Apache-2.0"
version = release = version_of("distsgd")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design"]
root_doc = "docs/index"
include_patterns = ["docs/**", "tutorials/*.ipynb", "CHANGELOG.md"]
exclude_patterns = ["docs/conf.py"]
html_theme, html_title = "furo", "distsgd"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = html_copy_source = False
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4
myst_heading_slug_func = "distsgd.benchmarks.claims_page.slug"
nb_execution_mode = "off"  # the notebooks have their outputs, which the tests check
nb_merge_streams = True
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signatures of the docstrings' texts are enough
suppress_warnings = ["mystnb.unknown_mime_type"]
copybutton_prompt_text, copybutton_prompt_is_regexp = r"\$ |>>> |\.\.\. ", True
copybutton_line_continuation_character = "\\"
copybutton_selector = ":is(.highlight-bash, .highlight-console, .highlight-python, .highlight-toml, .cell_input) pre"


def with_algorithm_pages(app: Sphinx, docname: str, source: list[str]) -> None:
    """Let links to the module of an algorithm lead to its page, which links to the module."""
    if docname.startswith("docs/") and not docname.startswith("docs/algorithms/"):
        source[0] = re.sub(r'<a id="[\w-]+"></a>\n', "", source[0])  # for GitHub: the site has anchors of its own
        source[0] = re.sub(r"\[(`[^`]+`)\]\(\.\./[^)]*/\)", r"\1", source[0])  # folders are not on the site
        source[0] = re.sub(r"\]\(\.\./algorithms/(?!__init__)(\w+)\.py\)", r"](algorithms/\1.md)", source[0])


def write_pages(app: Sphinx) -> None:
    """Generate the pages of the algorithms."""
    from distsgd.benchmarks.algorithm_pages import write_pages

    write_pages(CHECKOUT / "docs" / "algorithms")


def write_entry(app: Sphinx, exception: Exception | None) -> None:
    """Let the folder itself lead to the first page, and list all pages for programs."""
    from distsgd.benchmarks.choose_page import copy_scripts
    from distsgd.benchmarks.site_index import site_index

    if app.builder.name == "html" and exception is None:
        (Path(app.outdir) / "llms.txt").write_text(site_index(CHECKOUT / "docs"))
        copy_scripts(Path(app.outdir) / "_static")
        for notebook in CHECKOUT.glob("tutorials/*.ipynb"):
            shutil.copy(notebook, Path(app.outdir) / "tutorials")
        target = f"{root_doc}.html"
        text = f'<!doctype html><meta http-equiv="refresh" content="0; url={target}"><a href="{target}">distsgd</a>\n'
        (Path(app.outdir) / "index.html").write_text(text)


def with_more(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Put the sliders into their page, and a link to the file above the page of a notebook."""
    if pagename == "docs/choose":
        from distsgd.benchmarks.choose_page import sliders

        context["body"] = context["body"].replace('<div id="choose"></div>', sliders())
    if pagename.startswith("tutorials/"):
        file = f"{pagename.removeprefix('tutorials/')}.ipynb"
        context["body"] = f'<p class="download"><a href="{file}" download>Download {file}</a></p>' + context["body"]


class Commands(BashLexer):
    """Bash whose flags are words of their own, so that no line is broken within one."""

    tokens: ClassVar = {"root": [(r"(?<=\s)--?[A-Za-z][\w-]*", Name.Attribute), inherit]}


class Session(BashSessionLexer):
    """Such commands with prompts, and what they print."""

    _innerLexerCls = Commands


def visit_math(translator: Any, node: nodes.math) -> None:
    """Write an equation of a line as MathML, which browsers render without a script."""
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def visit_block(translator: Any, node: nodes.math_block) -> None:
    """Write an equation of its own as MathML."""
    translator.body.append(convert(node.astext(), display="block"))
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Connect the functions above."""
    app.connect("builder-inited", write_pages)
    app.connect("source-read", with_algorithm_pages)
    app.add_lexer("bash", Commands)
    app.add_lexer("console", Session)
    app.connect("html-page-context", with_more)
    app.connect("build-finished", write_entry)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_block, None))


html_math_renderer = "mathml"
