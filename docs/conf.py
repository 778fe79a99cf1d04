"""The documentation site: `make docs` builds it; a broken link or page is an error.

The reference pages on the command line, Records, metrics and a spec's keys are made
from the code by docs/generated.py.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

DOCS = Path(__file__).parent
ROOT = DOCS.parent

project = "raysuite"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "raysuite"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
myst_heading_anchors = 3
myst_links_external_new_tab = True


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _leave_docs)


def _leave_docs(app: Sphinx, page: str, source: list[str]) -> None:
    """A link to a file of the repository outside docs/ becomes its path; it must exist."""

    def path_of(link: re.Match[str]) -> str:
        target = (DOCS / page).parent.joinpath(link["target"]).resolve()
        if target.is_relative_to(DOCS):
            return link[0]
        if not target.exists():
            logging.getLogger("docs").warning("%s: no such file", link["target"], location=page)
        path = str(target.relative_to(ROOT))
        return f"`{path}`" if Path(path).name in link["text"] else f"{link['text']} (`{path}`)"

    source[0] = re.sub(
        r"\[(?P<text>[^\]]*)\]\((?P<target>\.\./[^)#\s]*)[^)]*\)", path_of, source[0]
    )
