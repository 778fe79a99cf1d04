"""The argument list that runs a command inside an image, with no value read as anything else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from raysuite.errors import UserError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FORBIDDEN_IN_BINDS = ',"\\\n\r\0'
"""Apptainer reads binds as lines of CSV, and a backslash as the mark of a colon that is meant."""

_NEUTRAL = {"PYTHONPATH": "", "PYTHONHOME": ""}
"""A site's modules set these for the Python outside; `unset` in an image does not undo that."""


def exec_line(
    image: str,
    *,
    binds: Sequence[str] = (),
    gpus: bool = False,
    scratch: str | None = None,
    environment: Mapping[str, str] | None = None,
    verb: str = "exec",
) -> list[str]:
    """`apptainer exec ... IMAGE`, to which the caller appends the command and its arguments.

    `verb` is exec, run or shell. `binds` are SRC, SRC:DST or SRC:DST:ro. `scratch` is bound at its
    own path, so that paths below it mean the same inside and outside. The home folder and /tmp are
    there as Apptainer has them; variables of the calling process pass into the image as they are,
    and `environment` is set on top of them. Raises UserError for a value that Apptainer would
    read as something else.
    """
    line = ["apptainer", "--quiet", verb, "--no-eval"]
    if gpus:
        line.append("--nv")
    wanted = list(binds)
    if scratch is not None and not _is_below(scratch, "/tmp"):
        if ":" in scratch:
            raise UserError(f"the scratch folder {scratch!r} holds a colon; Apptainer binds none")
        wanted.append(scratch)
    for bind in wanted:
        line += ["--bind", checked_bind(bind)]
    for name, value in (_NEUTRAL | dict(environment or {})).items():
        line += ["--env", variable(name, value)]
    return [*line, checked_image(image)]


def checked_bind(bind: str) -> str:
    """The bind itself. Raises UserError where it is not SRC, SRC:DST or SRC:DST:ro."""
    parts = bind.split(":")
    absolute = all(part.startswith("/") for part in parts[:2])
    mode = len(parts) < 3 or (len(parts) == 3 and parts[2] in ("ro", "rw"))
    if not (absolute and mode) or any(char in bind for char in _FORBIDDEN_IN_BINDS):
        raise UserError(
            f"given was the bind {bind!r}; it should be SRC, SRC:DST or SRC:DST:ro, of absolute "
            "paths without commas, colons, quotes, backslashes and line ends"
        )
    return bind


def checked_image(image: str) -> str:
    """The image's path itself. Raises UserError where Apptainer would take it for an address."""
    if not image.startswith("/") or ":" in image or "\0" in image:
        raise UserError(
            f"given was the image {image!r}; it should be the absolute path of a SIF file, "
            "without colons"
        )
    return image


def variable(name: str, value: str) -> str:
    """NAME=VALUE as `apptainer --env` reads it: one field of CSV where it holds several `=`.

    With one `=` alone Apptainer takes the text as it is but strips double quotes from both ends.
    Raises UserError for a name that is none, and for a value that cannot be passed unharmed.
    """
    if not _NAME.fullmatch(name):
        raise UserError(f"given was the variable {name!r}; a name has letters, digits and _ alone")
    if "\0" in value:
        raise UserError(f"the value of {name} holds a NUL, which no environment can")
    text = f"{name}={value}"
    if "=" in value:
        doubled = text.replace('"', '""')
        return f'"{doubled}"'
    if value.endswith('"'):
        raise UserError(
            f"the value of {name} is {value!r}: Apptainer strips a double quote at its end; set it "
            "in the calling environment instead"
        )
    return text


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
