"""One encoded image: is it whole, how large, and is anything odd about it?"""

from __future__ import annotations

from raysuite.data.check.report import Part
from raysuite.data.formats.header import Header
from raysuite.data.pixels import decode, header_of
from raysuite.errors import DataError


def check_image(part: Part, data: bytes, place: str, decoded: bool, offset: int = -1) -> None:
    """Add to `part` what one image is; all its pixels are decoded if `decoded`."""
    part.images += 1
    try:
        header = header_of(data, place)
        if decoded:
            decode(data, 1 if header.channels == 1 else 3, place)
    except DataError as error:
        part.unreadable += 1
        reason = error.__cause__ or error
        part.wrong("image", place, f"not a readable image ({reason})", offset)
        return
    part.sizes[header.width, header.height] += 1
    part.look(_look(header), place, offset)


def _look(header: Header) -> str:
    if header.kind == "other":
        return f"none of JPEG and PNG, {'grey' if header.channels == 1 else 'coloured'}"
    kind = header.kind.upper()
    if header.bits != 8:
        return f"{kind} of {header.bits} bits"
    if header.kind == "jpeg":
        return f"{kind} {({1: 'grey', 3: 'RGB'}).get(header.channels, 'CMYK')}"
    return (
        f"{kind} {({1: 'grey', 3: 'RGB'}).get(header.channels, 'with a palette or transparency')}"
    )
