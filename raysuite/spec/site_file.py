"""A site's YAML file -> Site, with every mistake at once.

Apart from the options of sites: a cluster's agents have those, and start without the options of
experiments, which checking needs.
"""

from __future__ import annotations

from pathlib import Path

from raysuite.errors import Mistake, SpecError
from raysuite.spec.base import suggest
from raysuite.spec.checking import validate_as
from raysuite.spec.document import Document, read_document
from raysuite.spec.site import SITES, LocalSite, SlurmSite


def read_site(file: Path) -> LocalSite | SlurmSite:
    """The site that a file describes; its name is the file's where it gives none.

    Raises SpecError, which names file, line and key of every mistake.
    """
    return site_of(read_document(file), file.stem)


def site_of(document: Document, name: str) -> LocalSite | SlurmSite:
    """The site of a document, called `name` where it gives none itself.

    Raises SpecError, which names file, line and key of every mistake.
    """
    kind = document.data.get("kind")
    if not isinstance(kind, str) or kind not in SITES:
        place, line = document.place(("kind",))
        given = "is missing" if kind is None else f"given was {kind!r}"
        message = f"{given}; {suggest(str(kind), SITES)}"
        raise SpecError([Mistake(message, key="kind", file=place, line=line)])
    return validate_as(SITES[kind], {"name": name, **document.data}, document.place)
