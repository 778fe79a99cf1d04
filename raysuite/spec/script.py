"""The section `script` of a spec: a user's training script instead of a network and its data."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import Field, field_validator

from raysuite.spec.base import Options, later

NAMES = ("workers", "nodes")
"""Names that a placeholder may use."""
LAUNCHERS_OWN = frozenset(
    """RANK LOCAL_RANK GROUP_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE
    ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT""".split()  # noqa: SIM905
)
"""Variables that torch's launcher, or a worker of a cluster, sets for each rank."""
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
_MOST_CHARACTERS = 200
_MOST = 1e15
"""Largest valid value of a placeholder."""

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


class _NoArithmeticError(ValueError):
    """Braces that contain something other than arithmetic, such as JSON."""


def fill(text: str, names: Mapping[str, int]) -> str:
    """`text` with each placeholder `{256 // workers}` replaced by its value.

    A placeholder is arithmetic (+ - * / // %) on numbers and `names`. Braces around anything else,
    such as JSON, are unchanged; `{{` and `}}` are single braces. A whole number is written without
    a decimal point. Raises ValueError for an unknown name, a division by zero and a result beyond
    10^15.
    """

    def replace(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0][0]
        try:
            return _written(value_of(found[1], names))
        except _NoArithmeticError:
            return found[0]

    return _BRACES.sub(replace, text)


def value_of(expression: str, names: Mapping[str, int]) -> float:
    """The value of an arithmetic expression of numbers and `names`.

    Raises ValueError for any other text, for a division by zero, and for a value beyond 10^15.
    """
    if len(expression) > _MOST_CHARACTERS:
        raise _NoArithmeticError(expression)
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _NoArithmeticError(expression) from error
    kinds = ast.BinOp | ast.UnaryOp | ast.Name | ast.Constant | ast.operator | ast.unaryop
    parts = [part for part in ast.walk(tree) if not isinstance(part, ast.expr_context)]
    if not all(isinstance(part, kinds) for part in parts):
        raise _NoArithmeticError(expression)
    try:
        value = _value(tree, names)
    except (ZeroDivisionError, OverflowError) as error:
        raise ValueError(f"{{{expression}}}: {error}; change the expression") from error
    if not abs(value) <= _MOST:
        raise ValueError(
            f"{{{expression}}} is {value:.3g}; its absolute value should be at most {_MOST:.0e}"
        )
    return value


def _value(node: ast.expr, names: Mapping[str, int]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Name(id=name):
            raise ValueError(
                f"{{{name}}}: unknown name {name!r}; a placeholder is arithmetic on numbers and "
                f"the names {' and '.join(names)}; write {{{{ }}}} for literal braces"
            )
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            value: float = _BINARY[type(op)](_value(left, names), _value(right, names))
            if abs(value) > _MOST:
                raise OverflowError(f"more than {_MOST:.0e}")
            return value
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _UNARY:
            return float(_UNARY[type(sign)](1)) * _value(operand, names)
    raise _NoArithmeticError(ast.unparse(node))


def _written(value: float) -> str:
    """Format a number; a whole number has no decimal point: `32`, `0.1`."""
    return str(int(value)) if value == int(value) else repr(value)


def _or_text(schema: dict[str, Any]) -> None:
    """Change the JSON schema of a list of words: a string, to be split into words, is valid too."""
    words = {key: schema.pop(key) for key in ("type", "items", "minItems") if key in schema}
    schema["anyOf"] = [{"type": "string"}, words]


def numbers_of(workers: int, nodes: int = 1) -> dict[str, int]:
    """The values of the names in placeholders. `nodes` is 1 until the run begins, because the
    number of nodes is not known before."""
    return {"workers": workers, "nodes": nodes}


class ScriptOptions(Options):
    """A training script, which torch's launcher starts unchanged on all workers."""

    command: tuple[str, ...] = Field(min_length=1, json_schema_extra=_or_text)
    """The script and its arguments, or `-m` and a module. `{256 // workers}` in an argument is
    computed for each run, from numbers, `workers`, `nodes`, and + - * / // %."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further arguments, which a matrix can vary, appended as `--KEY VALUE`. The value true appends
    only `--KEY`; null and false append nothing."""
    environment: dict[str, Any] = Field(default_factory=dict)
    """Environment variables of the script's processes; null leaves a variable as it is."""
    samples_per_step: int | str | None = None
    """Number of samples of an optimiser step, over all workers, or an expression such as
    `32 * workers`; default: counted in the batches that the script reads from its DataLoader."""
    check: int = later(0, ge=0)
    """The parameters of all ranks are compared after each of the first `check` steps."""
    stall_s: float = Field(default=1800.0, gt=0)
    """A run is ended if no rank takes a step for this many seconds, because a rank may hang."""

    @field_validator("command", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        """Split a single text such as `train.py --batch 32` as a shell would."""
        import shlex

        if not isinstance(value, str):
            return value
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise ValueError(f"got {value!r}, which cannot be split: {error}") from error
        if not words:
            raise ValueError(f"got {value!r}; it should be a Python script, or -m and a module")
        for word in words:
            if word.count("{") != word.count("}"):
                raise ValueError(
                    f"got {value!r}, which a shell would split at {word!r}; quote a placeholder "
                    "with spaces, as in --batch '{64 // workers}'"
                )
        return tuple(words)

    @field_validator("command")
    @classmethod
    def _names_a_script(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if command[0] == "-m" and len(command) == 1:
            raise ValueError("got -m without a module; give its name after -m")
        if command[0].startswith("-") and command[0] != "-m":
            raise ValueError(f"got {command[0]!r}; the first word should be a Python script, or -m")
        return command

    @field_validator("environment")
    @classmethod
    def _names_variables(cls, environment: dict[str, Any]) -> dict[str, Any]:
        for name in environment:
            if not name or "=" in name:
                raise ValueError(f"got {name!r}; the name of a variable is not empty and has no =")
        return environment

    def words(self, names: Mapping[str, int]) -> list[str]:
        """The command line of one run. Raises ValueError for a wrong placeholder."""
        words = [fill(word, names) for word in self.command]
        for key, value in self.arguments.items():
            if value is None or value is False:
                continue
            words.append(f"--{key}")
            words += [] if value is True else [fill(str(value), names)]
        return words

    def variables(self, names: Mapping[str, int]) -> dict[str, str]:
        """The environment that the run sets. Raises ValueError for a wrong placeholder, and for a
        variable that the launcher sets itself."""
        if own := LAUNCHERS_OWN.intersection(self.environment):
            raise ValueError(f"{min(own)} is set for each rank by the launcher; leave it out")
        return {
            key: fill(str(value), names)
            for key, value in self.environment.items()
            if value is not None
        }

    def samples(self, names: Mapping[str, int]) -> int | None:
        """`samples_per_step` as a number; None if it is not set. Raises ValueError if its value is
        not a whole number of at least 1."""
        given = self.samples_per_step
        if given is None:
            return None
        try:
            value = value_of(str(given), names)
        except _NoArithmeticError:
            value = 0
        if value < 1 or value != int(value):
            raise ValueError(
                f"samples_per_step: got {given!r}; it should be a whole number from 1 on, or "
                "arithmetic that gives one, such as 32 * workers"
            )
        return int(value)


STANDS_FOR: dict[str, dict[str, Any]] = {
    "model": {"name": "script:main"},
    "data": {"name": "script:main", "image_size": 1},
    "training": {"epochs": 1, "batch_per_worker": 1, "checkpoint_every": 0},
}
"""Block of a spec that a script replaces -> values that the plan uses for the block instead."""
EXCLUDED = ("loader", "strategy", "optimizer", "schedule", "search", "synthetic_data")
"""Blocks that cannot be combined with a script."""
