"""A batch of CIFAR-10's Python version: a pickle, read without running anything of it.

Of pickle's language only what such a batch has is known: bytes, text, whole numbers, lists, tuples, dictionaries, and
arrays of bytes. Nothing is imported or called; an array is a note of its type, shape and bytes.
"""

from __future__ import annotations

import dataclasses
import pickletools
from collections.abc import Callable
from typing import Any

MOST_STEPS = 400_000
"""Opcodes; a batch has some 50,000, of 10,000 labels and as many names of files."""
_RECONSTRUCT, _DTYPE = "reconstruct", "dtype"
_ARRAY = "ndarray"
_GLOBALS = {
    "numpy.core.multiarray _reconstruct": _RECONSTRUCT,
    "numpy._core.multiarray _reconstruct": _RECONSTRUCT,
    "numpy dtype": _DTYPE,
    "numpy ndarray": _ARRAY,
}
"""What an array is made of; each stands for itself alone."""
_BYTE_TYPES = ("u1", b"u1")


class PickleError(Exception):
    """What it is instead of a batch."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Global:
    name: str


@dataclasses.dataclass(slots=True)
class _Noted:
    """An array, or the type of its elements: what it was to be made with, and its state."""

    kind: str
    arguments: tuple[Any, ...]
    state: Any = None


class _Mark:
    """Where a list of things on the stack begins."""


def read_batch(content: bytes) -> tuple[bytes, list[int]]:
    """The pictures' bytes, one picture after the other, and their labels.

    Raises:
        PickleError: it is something else; says what.
    """
    batch = _Machine().run(content)
    if not isinstance(batch, dict):
        raise PickleError("it is no dictionary")
    data, labels = (batch.get(name.encode(), batch.get(name)) for name in ("data", "labels"))
    if not isinstance(labels, list) or any(type(label) is not int for label in labels):
        raise PickleError("its labels are no list of whole numbers")
    return _bytes_of(data), labels


def _bytes_of(noted: Any) -> bytes:
    """Of an array of bytes with two dimensions, in the order of C."""
    if not isinstance(noted, _Noted) or noted.kind != _RECONSTRUCT or not isinstance(noted.state, tuple):
        raise PickleError("its data is no array")
    if len(noted.state) != 5:
        raise PickleError("its data is no array")
    _, shape, dtype, by_columns, data = noted.state
    is_bytes = isinstance(dtype, _Noted) and dtype.kind == _DTYPE and dtype.arguments[:1] in [(t,) for t in _BYTE_TYPES]
    if not is_bytes or by_columns or not isinstance(data, bytes):
        raise PickleError("its data is no array of bytes")
    good = isinstance(shape, tuple) and len(shape) == 2 and all(type(one) is int and one >= 0 for one in shape)
    if not good or shape[0] * shape[1] != len(data):
        raise PickleError("its data has another length than its shape says")
    return data


class _Machine:
    """Does what the opcodes say, of those that it knows."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._steps: dict[str, Callable[[Any], None]] = {
            **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda _: None),
            **dict.fromkeys(("BINSTRING", "SHORT_BINSTRING"), lambda text: self._push(text.encode("latin-1"))),
            **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"), self._push),
            **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE"), self._push),
            **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1"), self._push),
            **dict.fromkeys(("BINPUT", "LONG_BINPUT"), self._put),
            "MEMOIZE": lambda _: self._put(len(self._memo)),
            **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda at: self._push(self._memo[at])),
            "NONE": lambda _: self._push(None),
            "NEWTRUE": lambda _: self._push(True),
            "NEWFALSE": lambda _: self._push(False),
            "MARK": lambda _: self._push(_Mark()),
            "EMPTY_DICT": lambda _: self._push({}),
            "EMPTY_LIST": lambda _: self._push([]),
            "EMPTY_TUPLE": lambda _: self._push(()),
            "TUPLE": lambda _: self._push(tuple(self._marked())),
            "TUPLE1": lambda _: self._push(tuple(self._last(1))),
            "TUPLE2": lambda _: self._push(tuple(self._last(2))),
            "TUPLE3": lambda _: self._push(tuple(self._last(3))),
            "APPEND": lambda _: self._extend(self._last(1)),
            "APPENDS": lambda _: self._extend(self._marked()),
            "SETITEM": lambda _: self._set(self._last(2)),
            "SETITEMS": lambda _: self._set(self._marked()),
            "GLOBAL": self._global,
            "STACK_GLOBAL": lambda _: self._global(" ".join(map(str, self._last(2)))),
            "REDUCE": lambda _: self._reduce(*self._last(2)),
            "BUILD": lambda _: self._build(*self._last(1)),
        }

    def run(self, content: bytes) -> Any:
        """What is left in the end."""
        try:
            for number, (opcode, argument, _) in enumerate(pickletools.genops(content)):
                step = self._steps.get(opcode.name)
                if step is None:
                    raise PickleError(f"it has the opcode {opcode.name}, which no batch has")
                if number >= MOST_STEPS:
                    raise PickleError(f"it has more than {MOST_STEPS:,} steps")
                step(argument)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
            raise PickleError("it is cut short or no pickle") from error
        if len(self._stack) != 1:
            raise PickleError("it leaves something over")
        return self._stack[0]

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _put(self, at: int) -> None:
        self._memo[at] = self._stack[-1]

    def _last(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise IndexError
        taken = self._stack[-count:]
        del self._stack[-count:]
        return taken

    def _marked(self) -> list[Any]:
        """All above the last mark."""
        at = len(self._stack) - 1
        while not isinstance(self._stack[at], _Mark):
            at -= 1
            if at < 0:
                raise IndexError
        taken = self._stack[at + 1 :]
        del self._stack[at:]
        return taken

    def _extend(self, values: list[Any]) -> None:
        if not isinstance(self._stack[-1], list):
            raise TypeError
        self._stack[-1].extend(values)

    def _set(self, pairs: list[Any]) -> None:
        if not isinstance(self._stack[-1], dict) or len(pairs) % 2:
            raise TypeError
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if not isinstance(key, bytes | str):
                raise TypeError
            self._stack[-1][key] = value

    def _global(self, name: str) -> None:
        if name not in _GLOBALS:
            raise PickleError(f"it asks for {name[:100]!r}, which no batch does")
        self._push(_Global(_GLOBALS[name]))

    def _reduce(self, called: Any, arguments: Any) -> None:
        if not isinstance(called, _Global) or called.name == _ARRAY or not isinstance(arguments, tuple):
            raise PickleError("it makes something that no batch has")
        self._push(_Noted(called.name, arguments))

    def _build(self, state: Any) -> None:
        if not isinstance(self._stack[-1], _Noted):
            raise PickleError("it makes something that no batch has")
        self._stack[-1].state = state
