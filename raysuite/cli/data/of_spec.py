"""The stand-ins that a spec asks for, and where its runs look for them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from raysuite.errors import UserError

if TYPE_CHECKING:
    from raysuite.data.synthesis import StandIn


def stand_ins_of(file: Path, scale: str | None) -> list[tuple[StandIn, Path]]:
    """One for each data set and format of the spec's runs or trials that its `stand_ins` names.

    Raises SpecError for mistakes of the spec, UserError for a stand-in that cannot be.
    """
    from raysuite.data.synthesis import plan_stand_in
    from raysuite.layouts import root_of
    from raysuite.plan import expand
    from raysuite.plan.trials import specs_of_space
    from raysuite.spec import read_document
    from raysuite.spec.search_check import read_search

    document = read_document(file, scale=scale)
    if document.data.get("search") is not None:
        specs = specs_of_space(document, read_search(document))
    else:
        specs = [spec for _, spec in expand(document)]

    found: dict[Path, StandIn] = {}
    for spec in specs:
        data = spec.data
        wanted = spec.stand_ins.get(data.name)
        if wanted is None or root_of(data) in found:
            continue
        found[root_of(data)] = plan_stand_in(
            data.name,
            data.form,
            fraction=wanted.fraction,
            images=wanted.images,
            classes=wanted.classes,
            size=None if wanted.size is None else parse_size(str(wanted.size)),
            content=wanted.content,
            seed=wanted.seed,
        )
    return [(stand_in, folder) for folder, stand_in in found.items()]


def parse_size(given: str) -> tuple[int, int]:
    """`64` or `500x375` -> width and height in pixels. Raises UserError."""
    found = re.fullmatch(r"(\d{1,6})(?:x(\d{1,6}))?", given)
    if found is None:
        raise UserError(f"size {given!r}; valid are pixels, such as 64, or 500x375 (width, height)")
    return int(found[1]), int(found[2] or found[1])
