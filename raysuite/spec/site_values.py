"""Checks of the values in a site's file. Valid text is kept as written; only `~/` is expanded."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from raysuite.errors import UserError

_CONTROL = ("Cc", "Cs", "Zl", "Zp")
"""Unicode categories of control characters, lone surrogates, line and paragraph separators."""

_RESERVED = re.compile(
    r"(SLURM|SBATCH|SRUN|MLFLOW_TRACKING|RAY_AUTH)_|RAY_(ADDRESS|TMPDIR)$"
    r"|RAYSUITE_(CLUSTER|INTERFACE|HOME)$"
)
_SECRET = re.compile(r"(TOKEN|PASSWORD|PASSWD|SECRET|API_KEY|ACCESS_KEY)$", re.IGNORECASE)
_SECRET_LIKE = re.compile(r"(^|_)(PASS|PASSPHRASE|PWD|PW|KEY|CREDENTIALS?|AUTH)$", re.IGNORECASE)
_URL_WITH_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]*://[^/@\s:]*:[^/@\s]+@", re.IGNORECASE)
_VARIABLE = r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})"
_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<h>\d+)(?::(?P<m>\d+)(?::(?P<s>\d+))?)?"
    r"|(?P<hours>\d+):(?P<mm>\d+):(?P<ss>\d+)"
    r"|(?P<minutes>\d+)(?::(?P<seconds>\d+))?)"
)


def one_line(text: str) -> str:
    """Return the text. Raises ValueError if it is empty or has a line break or control
    character."""
    if not text.strip():
        raise ValueError("got an empty text; leave the key out, or give it a value")
    odd = [char for char in text if unicodedata.category(char) in _CONTROL]
    if odd:
        raise ValueError(
            f"got {text!r}; it should be one line without control characters, but has {odd[0]!r}"
        )
    return text


def _absolute(text: str) -> str:
    if text == "~" or text.startswith("~/"):
        text = os.path.expanduser(text)
    if not one_line(text).startswith("/"):
        raise ValueError(f"got {text!r}; it should be an absolute path, or begin with ~/")
    return text


def _matching(pattern: str, wish: str) -> AfterValidator:
    """A validator for one line of text that matches the pattern as a whole."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, one_line(text)):
            raise ValueError(f"got {text!r}; it should be {wish}")
        return text

    return AfterValidator(check)


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`text` with $NAME and ${NAME} replaced. Raises UserError for an unset variable."""

    def value(match: re.Match[str]) -> str:
        name = match[0].strip("${}")
        if not variables.get(name):
            raise UserError(
                f"{text} cannot be expanded: {name} is not set on this machine; set it, or give a "
                "folder without $"
            )
        return variables[name]

    return re.sub(_VARIABLE, value, text)


def node_range(nodes: int | str) -> tuple[int, int]:
    """The least and largest number of nodes: `3` -> 3, 3; `2-4` -> 2, 4. Raises ValueError
    otherwise."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})(?:-([1-9][0-9]{0,5}))?", str(nodes))
    if match is None or (match[2] and int(match[2]) < int(match[1])):
        raise ValueError(f"got {nodes!r}; it should be a number of nodes, or a range such as 2-4")
    return int(match[1]), int(match[2] or match[1])


def _nodes(nodes: int | str) -> int | str:
    least, most = node_range(nodes)
    return least if least == most else nodes


def _bind(text: str) -> str:
    parts = one_line(text).split(":")
    parts[:2] = [_absolute(part) for part in parts[:2]]
    if len(parts) > 3 or "," in text or (len(parts) == 3 and parts[2] not in ("ro", "rw")):
        raise ValueError(f"got {text!r}; it should be SRC, SRC:DST or SRC:DST:ro, without commas")
    return ":".join(parts)


def _time(text: str) -> str:
    slurm_seconds(text)
    return text


def _plain_number(value: Any) -> Any:
    """Convert a number to text: YAML reads `30` as a number."""
    return str(value) if type(value) is int else value


def slurm_seconds(text: str) -> int:
    """A time in SLURM's notation -> seconds. Raises ValueError for other text."""
    match = _TIME.fullmatch(text) if text.isascii() else None
    given = {key: int(value or 0) for key, value in match.groupdict().items()} if match else {}
    hours = given.get("h", 0) + given.get("hours", 0) + 24 * given.get("days", 0)
    minutes = sum(given.get(key, 0) for key in ("m", "mm", "minutes"))
    seconds = sum(given.get(key, 0) for key in ("s", "ss", "seconds"))
    total = 3600 * hours + 60 * minutes + seconds
    if not total or total > 10 * 366 * 86400:
        raise ValueError(
            f"got {text!r}; it should be a time as SLURM writes it: MINUTES, MM:SS, "
            "HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS"
        )
    return total


def environment_mistakes(environment: Mapping[str, str]) -> list[str]:
    """Mistakes in the variables that a site sets."""
    wrong = []
    for name, value in environment.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            wrong.append(f"{name!r} is not a valid variable name; use letters, digits and _")
        elif _RESERVED.match(name):
            wrong.append(f"{name} is set by SLURM or by raysuite itself; leave it out")
        elif _SECRET.search(name):
            wrong.append(
                f"{name} looks like a secret, and every process of the cluster would inherit it; "
                "put it into a file of your own that your code reads"
            )
        if any(unicodedata.category(char) in _CONTROL and char != "\t" for char in value):
            wrong.append(f"the value of {name} is {value!r}; it should be one line")
    return wrong


def secret_like(environment: Mapping[str, str]) -> list[str]:
    """Names of variables that seem to contain a password: DB_PASS, or a proxy's URL with a
    password."""
    return [
        name
        for name, value in environment.items()
        if (_SECRET_LIKE.search(name) and name != "PWD") or _URL_WITH_PASSWORD.match(value)
    ]


Text = Annotated[str, BeforeValidator(_plain_number)]
Line = Annotated[str, BeforeValidator(_plain_number), AfterValidator(one_line)]
"""One non-empty line of text."""
Image = Annotated[
    str,
    BeforeValidator(lambda text: os.path.expanduser(text) if str(text)[:2] == "~/" else text),
    _matching(r"[^-].*", "a path or a name that does not begin with a dash"),
]
AbsolutePath = Annotated[str, AfterValidator(_absolute)]
"""An absolute path, or a path that begins with `~/`."""
Scratch = Annotated[
    str,
    _matching(
        rf"(/|{_VARIABLE})([^$]|{_VARIABLE})*",
        "an absolute path, in which each $ begins a variable that the nodes have, such as $TMPDIR "
        "or /scratch/$USER/$SLURM_JOB_ID",
    ),
]
"""A path in which each node expands `$NAME` and `${NAME}`, and nothing else; no shell reads it."""
NodeCount = Annotated[int | str, AfterValidator(_nodes)]
"""A number of nodes, `4`, or a range, `2-4`."""
HostName = Annotated[
    str, _matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", "the name or IPv4 address of a host")
]
Interface = Annotated[
    str,
    _matching(
        r"[A-Za-z0-9][A-Za-z0-9._@:-]{0,14}",
        "an interface's name as `ip link` shows it, such as ib0",
    ),
]
Bind = Annotated[str, AfterValidator(_bind)]
Module = Annotated[
    str,
    _matching(
        r"[A-Za-z0-9_][A-Za-z0-9_./+:=@-]*",
        "a module's name as `module avail` shows it, such as CUDA/12.4",
    ),
]
Memory = Annotated[
    str,
    BeforeValidator(_plain_number),
    _matching(
        r"[0-9]{1,9}[KMGTkmgt]?",
        "a number of megabytes, a number with a letter such as 480G, or 0 for all memory of the "
        "node",
    ),
]
SbatchLine = Annotated[
    str, _matching(r"#SBATCH -{1,2}[A-Za-z].*", "one line such as '#SBATCH --mail-type=END'")
]
SrunLine = Annotated[
    str, _matching(r"--[a-z][a-z-]*(=.+)?", "one long option, such as --mpi=cray_shasta")
]
SlurmTime = Annotated[str, BeforeValidator(_plain_number), AfterValidator(_time)]
