"""Pickles of plain data, read without running any code in them.

A pickle is a program, and the standard library's reader calls whatever function it names. Here a
reader of our own keeps the values alone: numbers, text, bytes, lists, dictionaries, and NumPy's
arrays as their raw bytes. Anything else is refused. `pickletools` only splits the stream into
operations and checks each length against what is there.
"""

from __future__ import annotations

import io
import pickletools
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Array:
    """A NumPy array as its pickle holds it; `kind` is a type code such as u1 or i8."""

    kind: str = ""
    order: str = "|"
    shape: tuple[int, ...] = ()
    data: bytes = b""

    def values(self) -> list[int]:
        """The numbers of an array of integers. Raises ValueError for anything else."""
        codes = {"u1": "B", "i1": "b", "u2": "H", "i2": "h", "u4": "I", "i4": "i"}
        code = (codes | {"u8": "Q", "i8": "q"}).get(self.kind)
        width = int(self.kind[1:]) if code else 1
        if code is None or len(self.data) % width:
            raise ValueError(f"an array of {self.kind!r}, where integers are expected")
        many = len(self.data) // width
        return list(struct.unpack(f"{'>' if self.order == '>' else '<'}{many}{code}", self.data))


@dataclass(frozen=True)
class _Global:
    """A name that the pickle would call."""

    name: str


@dataclass
class _Kind:
    code: str
    order: str = "|"


_MARK = object()


def load(data: bytes) -> Any:
    """The value that a pickle holds. Raises ValueError, with the reason, for anything but data."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of odd escapes in damaged text
        return _load(data)


def _load(data: bytes) -> Any:
    reader = _Reader()
    try:
        for operation, argument, position in pickletools.genops(io.BytesIO(data)):
            if operation.name in _VALUES:
                reader.push(argument)
            elif operation.name in _STEPS:
                _STEPS[operation.name](reader, argument)
            elif operation.name not in _FRAMING:
                raise ValueError(f"it holds more than data: {operation.name} at byte {position}")
        return reader.pop()
    except (LookupError, TypeError, AttributeError, OverflowError, struct.error) as error:
        raise ValueError(f"a damaged pickle ({type(error).__name__})") from error


class _Reader:
    """The stack machine of the pickle format, for the operations that build plain values."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise IndexError
        return value

    def pop_marked(self) -> list[Any]:
        at = len(self.stack) - 1 - self.stack[::-1].index(_MARK) if _MARK in self.stack else None
        if at is None:
            raise IndexError
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def put(self, index: int | None) -> None:
        self.memo[len(self.memo) if index is None else index] = self.stack[-1]

    def get(self, index: int) -> None:
        self.push(self.memo[index])

    def pack(self, count: int) -> None:
        values = [self.pop() for _ in range(count)]
        self.push(tuple(reversed(values)))

    def extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise TypeError
        target.extend(values)

    def update(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise TypeError
        target.update(_pairs(values))

    def name(self, module: Any, attribute: Any) -> None:
        self.push(_Global(f"{module}.{attribute}".replace("numpy._core.", "numpy.core.")))

    def call(self) -> None:
        """What the few known names would make; no other is allowed."""
        arguments, target = self.pop(), self.pop()
        make = _CALLS.get(target.name) if isinstance(target, _Global) else None
        if make is None:
            name = target.name if isinstance(target, _Global) else "a value"
            raise ValueError(f"it would call {name}, and only arrays and plain data are read")
        self.push(make(*arguments))

    def build(self) -> None:
        """What NumPy's __setstate__ would set."""
        state, target = self.pop(), self.stack[-1]
        if isinstance(target, _Kind):
            target.order = state[1]
        elif isinstance(target, Array):
            _, shape, kind, fortran, data = state
            if fortran:
                raise ValueError("an array in Fortran's order")
            target.shape, target.kind, target.order = shape, kind.code, kind.order
            target.data = _raw(data)
        else:
            raise ValueError(f"it would set the state of {target!r}")


def _raw(data: Any) -> bytes:
    # Python 3 writes bytes as text of Latin-1 in the old protocols, and old readers gave text
    return data.encode("latin-1") if isinstance(data, str) else bytes(data)


def _encode(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise ValueError(f"bytes in the encoding {encoding!r}")
    return text.encode("latin-1")


def _from_buffer(data: bytes, kind: _Kind, shape: tuple[int, ...], order: str) -> Array:
    if order != "C":
        raise ValueError(f"an array in the order {order!r}")
    return Array(kind.code, kind.order, shape, bytes(data))


def _scalar(kind: _Kind, data: Any) -> int:
    (value,) = Array(kind.code, kind.order, (), _raw(data)).values()
    return value


_CALLS: dict[str, Callable[..., Any]] = {
    "numpy.core.multiarray._reconstruct": lambda *_: Array(),
    "numpy.core.multiarray.scalar": _scalar,
    "numpy.core.numeric._frombuffer": _from_buffer,
    "numpy.dtype": lambda code, *_: _Kind(str(code)),
    "_codecs.encode": _encode,
    "__builtin__.bytes": lambda *_: b"",
    "builtins.bytes": lambda *_: b"",
}
"""What NumPy and Python write into a pickle of arrays and bytes; here it makes values alone."""

_FRAMING = {"PROTO", "FRAME", "STOP"}
_VALUES = set(
    """
    INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING
    BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8 UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8
    """.split()  # noqa: SIM905 - a list literal would take a screen
)
"""Operations whose argument is the value."""
_STEPS: dict[str, Callable[[_Reader, Any], None]] = {
    "NONE": lambda reader, _: reader.push(None),
    "NEWTRUE": lambda reader, _: reader.push(True),
    "NEWFALSE": lambda reader, _: reader.push(False),
    "MARK": lambda reader, _: reader.push(_MARK),
    "EMPTY_LIST": lambda reader, _: reader.push([]),
    "EMPTY_DICT": lambda reader, _: reader.push({}),
    "EMPTY_TUPLE": lambda reader, _: reader.push(()),
    "LIST": lambda reader, _: reader.push(reader.pop_marked()),
    "DICT": lambda reader, _: reader.push(_pairs(reader.pop_marked())),
    "TUPLE": lambda reader, _: reader.push(tuple(reader.pop_marked())),
    "TUPLE1": lambda reader, _: reader.pack(1),
    "TUPLE2": lambda reader, _: reader.pack(2),
    "TUPLE3": lambda reader, _: reader.pack(3),
    "APPEND": lambda reader, _: reader.extend([reader.pop()]),
    "APPENDS": lambda reader, _: reader.extend(reader.pop_marked()),
    "SETITEM": lambda reader, _: reader.update([reader.pop(), reader.pop()][::-1]),
    "SETITEMS": lambda reader, _: reader.update(reader.pop_marked()),
    **dict.fromkeys(
        ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), lambda reader, index: reader.put(index)
    ),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda reader, index: reader.get(index)),
    "GLOBAL": lambda reader, names: reader.name(*names.split(" ", 1)),
    "STACK_GLOBAL": lambda reader, _: reader.name(*[reader.pop(), reader.pop()][::-1]),
    "REDUCE": lambda reader, _: reader.call(),
    "BUILD": lambda reader, _: reader.build(),
}


def _pairs(values: list[Any]) -> dict[Any, Any]:
    return dict(zip(values[::2], values[1::2], strict=True))
