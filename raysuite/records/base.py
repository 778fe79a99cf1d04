"""The base class of all Records, and the format of their lines."""

from __future__ import annotations

import json
import re
import time
import zlib
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from raysuite.files import printable
from raysuite.spec.base import Frozen

_CHECK = re.compile(rb',"crc32":"(.{8})"}$', re.DOTALL)


def checked_line(model: BaseModel) -> bytes:
    """Return a model as a line of JSON that ends with a checksum; see `content_of`.

    Bytes that are not UTF-8, as in file names, are escaped: `caf\\xe9`.
    """
    try:
        text = model.model_dump_json()
    except ValueError:  # text that is not UTF-8
        text = json.dumps(_printable(model.model_dump()), ensure_ascii=False)
    content = text.encode()
    return b'%b,"crc32":"%08x"}' % (content[:-1], zlib.crc32(content))


def _printable(value: Any) -> Any:
    match value:
        case str():
            return printable(value)
        case dict():
            return {_printable(key): _printable(each) for key, each in value.items()}
        case list() | tuple():
            return [_printable(each) for each in value]
    return value


def content_of(line: bytes) -> bytes:
    """Return the JSON of a `checked_line` without its checksum. A line of an earlier version, which
    has no checksum, is returned unchanged.

    Raises ValueError if the checksum does not match.
    """
    found = _CHECK.search(line, len(line) - 20)
    if found is None:
        return line
    content = line[: found.start()] + b"}"
    if found[1] != b"%08x" % zlib.crc32(content):
        raise ValueError("its checksum does not match")
    return content


class RecordBase(Frozen):
    """One fact about one run."""

    # a diverged run has losses of NaN; an epoch with null in their place could not be read
    model_config = ConfigDict(ser_json_inf_nan="constants")

    run_id: str
    time: float = Field(default_factory=time.time)
