"""The argument list that runs a command inside an image, with no value read as anything else."""

from __future__ import annotations

from collections.abc import Sequence

from raysuite.errors import UserError

_FORBIDDEN_IN_BINDS = ',"\\\n\r\0'
"""Apptainer reads binds as lines of CSV, and a backslash as the mark of a colon that is meant."""

_NEUTRAL = ("--env", "PYTHONPATH=", "--env", "PYTHONHOME=")
"""A site's modules set these for the Python outside; `unset` in an image does not undo that."""


def exec_line(
    image: str,
    *,
    binds: Sequence[str] = (),
    gpus: bool = False,
    rocm: bool = False,
    scratch: str | None = None,
    verb: str = "exec",
) -> list[str]:
    """`apptainer exec ... IMAGE`, to which the caller appends the command and its arguments.

    `verb` is exec, run or shell. `rocm`: the GPUs are AMD's. `binds` are SRC, SRC:DST or
    SRC:DST:ro. `scratch` is bound at its own path, so that paths below it mean the same inside and
    outside. The home folder and /tmp are there as Apptainer has them; variables of the calling
    process pass into the image as they are, and no argument holds one's value, for all users of a
    host see arguments. Raises UserError for a value that Apptainer would read as something else.
    """
    line = ["apptainer", "--quiet", verb, "--no-eval"]
    if gpus:
        line.append("--rocm" if rocm else "--nv")
    wanted = list(binds)
    if scratch is not None and not _is_below(scratch, "/tmp"):
        if ":" in scratch:
            raise UserError(f"the scratch folder {scratch!r} holds a colon; Apptainer binds none")
        wanted.append(scratch)
    for bind in wanted:
        line += ["--bind", checked_bind(bind)]
    return [*line, *_NEUTRAL, checked_image(image)]


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


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
