"""Where sites are described, and the one that a name means."""

from __future__ import annotations

import os
from pathlib import Path

from raysuite.cluster.folder import home
from raysuite.errors import UserError
from raysuite.spec.checking import suggest
from raysuite.spec.site import LocalSite, SlurmSite
from raysuite.spec.site_file import read_site

_SHIPPED = Path(__file__).parent / "shipped_sites"
"""A checkout calls it deploy/sites."""


def own_sites() -> Path:
    """The folder of the user's own sites."""
    return home() / "sites"


def site_files() -> dict[str, Path]:
    """Every site by its name; the user's own come before the shipped ones, also in their place."""
    found: dict[str, Path] = {}
    for folder in (own_sites(), _SHIPPED):
        for file in sorted(folder.glob("*.yaml")):
            found.setdefault(file.stem, file)
    return found


def site_file(name_or_path: str | os.PathLike[str]) -> Path:
    """The file of the site of that name, or the path that was given.

    Raises UserError for a name that is not known.
    """
    given = os.fspath(name_or_path)
    if os.sep in given or given.endswith((".yaml", ".yml")):
        return Path(given).expanduser()
    files = site_files()
    if given not in files:
        raise UserError(
            f"no site is called {given!r}; {suggest(given, files)}. `raysuite cluster site new "
            "NAME` describes another, and a path such as ./mysite.yaml is taken too"
        )
    return files[given]


def find_site(name_or_path: str | os.PathLike[str]) -> LocalSite | SlurmSite:
    """The site of that name, or in that file.

    Raises UserError for a name that is not known, SpecError for mistakes in the file.
    """
    return read_site(site_file(name_or_path))
