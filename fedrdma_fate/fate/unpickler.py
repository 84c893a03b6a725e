"""Unpickles what a peer sent: by exact names, each for its use, and nothing is changed that the stream has not made.

Python's own unpickler is a machine that a stream drives: it imports, calls and fills whatever the stream names. Here

- a name is an exact pair of module and name out of a list (`allowed_names.py`, and the job's own): no prefix, no dots;
- a name has its uses: instances of it may be made and filled, or it may be called, or only passed on;
- only instances of such classes are filled, so neither classes, nor functions, nor the context and tables of the task;
- extension codes of `copyreg`, which pass by the names, are refused.
"""

from __future__ import annotations

import importlib
import io
import pickle
import struct
import sys
import types
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from fedrdma_fate.fate.allowed_names import ALLOWED_NAMES, Name, Use
from fedrdma_fate.fate.hash_cost import HashCost
from fedrdma_fate.fate.malformed import SHOWN_CHARACTERS, malformed, refuse, shown
from fedrdma_fate.fate.stream_memory import has_registered_extensions, is_bounded
from fedrdma_fate.wire.errors import ErrorCode, FateError, FedRDMAError

_LENGTH = struct.Struct("<Q")
"""Of what follows it."""


class PersistentLoad(Protocol):
    """What is behind a persistent id: a number in plain streams, an instance of an allowed class in others."""

    def __call__(self, pid: Any) -> Any:
        """The object.

        Raises:
            FateError: PAYLOAD_MALFORMED when it is none that we know.
        """
        ...


def names_with(
    additional: Collection[str], names: Mapping[tuple[str, str], Name] = ALLOWED_NAMES
) -> Mapping[tuple[str, str], Name]:
    """The names that a stream may use.

    Args:
        additional: further ones of this job, as `module:name`; for any use.
        names: those of every job.
    """
    pairs = [(module, name) for module, _, name in (entry.partition(":") for entry in additional)]
    return {**names, **{(module, name): Name(module, name, Use.ANY) for module, name in pairs}}


def unpickle(
    stream: bytes | memoryview,
    names: Mapping[tuple[str, str], Name],
    persistent_load: PersistentLoad,
    *,
    holds_arrays: bool = True,
    longest: int = 0,
) -> Any:
    """The object in a stream.

    Args:
        stream: as a peer wrote it.
        names: what it may use, see `names_with`.
        persistent_load: what is behind its persistent ids. May be called twice for the same numbers.
        holds_arrays: whether a number may stand for a tensor or an array.
        longest: bytes of the longest byte string that a number may stand for.

    Raises:
        FateError: NAME_FORBIDDEN when it asks for another name, or for another use of one; PAYLOAD_MALFORMED when it
            would change what it has not made, or is otherwise no stream that we load.
        Exception: as classes of the stream raise it.
    """
    # Tensors can be filled without a name, and items of arrays set: all of them at once, or those that lists without
    # end say. Only the other unpickler sees to that.
    if not holds_arrays:
        try:
            return unpickle_unnamed(stream, persistent_load, longest)
        except NameWantedError:
            pass
    return unpickle_named(stream, names, persistent_load)


class NameWantedError(Exception):
    """A stream is more than containers, numbers and text."""


def unpickle_unnamed(stream: bytes | memoryview, persistent_load: PersistentLoad, longest: int = 0) -> Any:
    """The object in a stream that makes containers, numbers and text only, which C does faster; see `unpickle`.

    Raises:
        NameWantedError: it uses a name, or might, for extension codes of `copyreg` pass by the names; or it is for the
            unpickler in Python because C might need more memory or time for it than its length allows.
        Exception: as unpickling raises it.
    """
    if has_registered_extensions():
        raise NameWantedError
    raw = bytes(stream)
    if not is_bounded(raw, longest=longest):
        raise NameWantedError
    return _PlainUnpickler(raw, persistent_load).load()


def unpickle_named(
    stream: bytes | memoryview, names: Mapping[tuple[str, str], Name], persistent_load: PersistentLoad
) -> Any:
    """The object in a stream that uses names, see `unpickle`."""
    return _NamingUnpickler(stream, names, persistent_load).load()


class _PlainUnpickler(pickle.Unpickler):
    """Loads streams that use no name at all."""

    def __init__(self, stream: bytes | memoryview, persistent_load: PersistentLoad) -> None:
        super().__init__(io.BytesIO(stream))
        self._persistent_load = persistent_load

    def persistent_load(self, pid: Any) -> Any:
        return self._persistent_load(pid)

    def find_class(self, _module_name: str, _global_name: str) -> Any:
        raise NameWantedError


class _NamingUnpickler(pickle._Unpickler):
    """Loads streams that use allowed names. The one in Python, for only there opcodes can be taken over."""

    if TYPE_CHECKING:  # what the stubs of pickle leave out
        stack: list[Any]
        append: Callable[[Any], None]

        read: Callable[[int], bytes]

        def pop_mark(self) -> list[Any]: ...

    def __init__(
        self, stream: bytes | memoryview, names: Mapping[tuple[str, str], Name], persistent_load: PersistentLoad
    ) -> None:
        super().__init__(io.BytesIO(stream))
        self._names = names
        self._persistent_load = persistent_load
        # by identity, with the object, so that no other one gets its identity
        self._found: dict[int, tuple[object, Name]] = {}
        self._cost = HashCost(len(stream))

    def persistent_load(self, pid: Any) -> Any:
        return self._persistent_load(pid)

    def find_class(self, module: str, name: str) -> Any:
        """What an allowed name stands for.

        Raises:
            FateError: NAME_FORBIDDEN, or PAYLOAD_MALFORMED where it does not exist here.
        """
        allowed = self._names.get((module, name))
        if allowed is None:
            raise _forbidden(module, name)
        if allowed.stand_in is not None:
            self._found[id(allowed.stand_in)] = (allowed.stand_in, allowed)
            return allowed.stand_in
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            refuse(f"it names {module}:{name}, which is not there", error)
        self._found[id(found)] = (found, allowed)
        return found

    def _make(self, made: Any, arguments: Any, keywords: Any) -> Any:
        """An instance of a class, not initialised."""
        self._require(made, Use.MAKE)
        return made.__new__(made, *arguments, **keywords)

    def _call(self, called: Any, arguments: Any) -> Any:
        name = self._require(called, Use.CALL)
        if type(arguments) is not tuple:
            raise malformed(f"it calls {name.module}:{name.name} without a tuple of arguments")
        if name.check_arguments is not None and not name.check_arguments(arguments):
            raise malformed(f"it calls {name.module}:{name.name} with other arguments than that pickles with")
        return called(*arguments)

    def _fill(self, instance: Any, state: Any) -> None:
        kind = type(instance)
        # NumPy's dtypes are each a class of their own; no other filled class has subclasses here
        name = self._name_of(np.dtype if isinstance(instance, np.dtype) else kind)
        if name is None or Use.FILL not in name.uses:
            raise malformed(f"it would change a {kind.__module__}.{kind.__qualname__}, which it may not")
        if type(state) is dict and any(type(key) is str and key.startswith("__") for key in state):
            raise malformed(f"it would set special attributes of a {kind.__module__}.{kind.__qualname__}")
        if name.check_state is not None and not name.check_state(instance, state):
            raise malformed(f"it fills a {name.module}:{name.name} with what that does not pickle with")
        # looked up as Python does for its own special methods: what lies in the instance is the stream's
        set_state = getattr(kind, "__setstate__", None)
        if set_state is not None:
            try:
                set_state(instance, state)
            except FedRDMAError:
                raise
            except BaseException as error:
                refuse(f"the state of a {kind.__qualname__} in it is none", error)
            return
        attributes, slots = state if type(state) is tuple and len(state) == 2 else (state, None)
        if attributes is not None:
            instance.__dict__.update(_text_keys(attributes))
        for key, value in _text_keys({} if slots is None else slots).items():
            if not isinstance(getattr(kind, key, None), types.MemberDescriptorType):
                raise malformed(f"it would set {shown(key)} of a {kind.__qualname__}, which is no slot")
            setattr(instance, key, value)

    def _require(self, wanted: Any, use: Use) -> Name:
        name = self._name_of(wanted)
        if name is None:
            raise malformed(f"it would use a {type(wanted).__qualname__} as if it were a name")
        if use not in name.uses:
            raise _forbidden(name.module, name.name, use)
        return name

    def _name_of(self, thing: object) -> Name | None:
        found, name = self._found.get(id(thing), (None, None))
        return name if found is thing else None

    # --- opcodes that act ---

    def _load_reduce(self) -> None:
        arguments = self.stack.pop()
        called = self.stack.pop()
        self.append(self._call(called, arguments))

    def _load_newobj(self) -> None:
        arguments = self.stack.pop()
        made = self.stack.pop()
        self.append(self._make(made, arguments, {}))

    def _load_newobj_ex(self) -> None:
        keywords = self.stack.pop()
        arguments = self.stack.pop()
        made = self.stack.pop()
        self.append(self._make(made, arguments, keywords))

    def _load_build(self) -> None:
        state = self.stack.pop()
        self._fill(self.stack[-1], state)

    def _load_tuple(self) -> None:
        self._append_tuple(self.pop_mark())

    def _load_tuple1(self) -> None:
        self._append_tuple([self.stack.pop()])

    def _load_tuple2(self) -> None:
        last = self.stack.pop()
        self._append_tuple([self.stack.pop(), last])

    def _load_tuple3(self) -> None:
        last, middle = self.stack.pop(), self.stack.pop()
        self._append_tuple([self.stack.pop(), middle, last])

    def _append_tuple(self, items: list[Any]) -> None:
        made = tuple(items)
        if not self._cost.take(made):
            raise _too_much()
        self.append(made)

    def _load_frozenset(self) -> None:
        items = self.pop_mark()
        left = self._cost.left
        if not self._cost.put(items):
            raise _too_much()
        made = frozenset(items)
        if not self._cost.take(made, left - self._cost.left):
            raise _too_much()
        self.append(made)

    def _load_dict(self) -> None:
        items = self.pop_mark()
        made: dict[Any, Any] = {}
        self._set_items(made, items)
        self.append(made)

    def _load_append(self) -> None:
        value = self.stack.pop()
        _require_kind(self.stack[-1], list)
        self.stack[-1].append(value)

    def _load_appends(self) -> None:
        items = self.pop_mark()
        _require_kind(self.stack[-1], list)
        self.stack[-1].extend(items)

    def _load_setitem(self) -> None:
        value = self.stack.pop()
        key = self.stack.pop()
        _require_kind(self.stack[-1], dict)
        self._set_items(self.stack[-1], [key, value])

    def _load_setitems(self) -> None:
        items = self.pop_mark()
        _require_kind(self.stack[-1], dict)
        self._set_items(self.stack[-1], items)

    def _load_additems(self) -> None:
        items = self.pop_mark()
        _require_kind(self.stack[-1], set)
        if not self._cost.put(items, self.stack[-1]):
            raise _too_much()
        self.stack[-1].update(items)

    def _set_items(self, target: dict[Any, Any], items: list[Any]) -> None:
        keys = items[::2]
        if not self._cost.put(keys, target):
            raise _too_much()
        for key, value in zip(keys, items[1::2], strict=True):
            target[key] = value

    def _load_bytearray(self) -> None:
        """Python's own makes a bytearray as long as the stream says, and then sees that there is less."""
        (length,) = _LENGTH.unpack(self.read(_LENGTH.size))
        self.append(bytearray(self.read(min(length, sys.maxsize))))

    def _load_nothing(self) -> None:
        raise malformed("it uses an opcode that FATE's picklers do not write")

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **pickle._Unpickler.dispatch,
        pickle.REDUCE[0]: _load_reduce,
        pickle.NEWOBJ[0]: _load_newobj,
        pickle.NEWOBJ_EX[0]: _load_newobj_ex,
        pickle.BUILD[0]: _load_build,
        pickle.TUPLE[0]: _load_tuple,
        pickle.TUPLE1[0]: _load_tuple1,
        pickle.TUPLE2[0]: _load_tuple2,
        pickle.TUPLE3[0]: _load_tuple3,
        pickle.FROZENSET[0]: _load_frozenset,
        pickle.DICT[0]: _load_dict,
        pickle.APPEND[0]: _load_append,
        pickle.APPENDS[0]: _load_appends,
        pickle.SETITEM[0]: _load_setitem,
        pickle.SETITEMS[0]: _load_setitems,
        pickle.ADDITEMS[0]: _load_additems,
        pickle.BYTEARRAY8[0]: _load_bytearray,
        # what protocols 0 and 1 made instances with, and what passes by the names
        pickle.INST[0]: _load_nothing,
        pickle.OBJ[0]: _load_nothing,
        pickle.EXT1[0]: _load_nothing,
        pickle.EXT2[0]: _load_nothing,
        pickle.EXT4[0]: _load_nothing,
    }


def _require_kind(target: object, kind: type) -> None:
    if not isinstance(target, kind):
        raise malformed(f"it adds to a {type(target).__qualname__} as if it were a {kind.__name__}")


def _text_keys(attributes: Any) -> dict[str, Any]:
    if type(attributes) is not dict or not all(type(key) is str for key in attributes):
        raise malformed("attributes of an instance are no dictionary with text as keys")
    return attributes


def _too_much() -> FateError:
    return malformed(
        "a tuple in it lies within more tuples than FATE's jobs send, or keys in it stand for more values, or have one "
        "hash more often"
    )


def _forbidden(module: str, name: str, use: Use | None = None) -> FateError:
    pair = f"{module[:SHOWN_CHARACTERS]}:{name[:SHOWN_CHARACTERS]}"
    done = {None: "names", Use.CALL: "calls"}.get(use, "makes instances of")
    return FateError(
        ErrorCode.NAME_FORBIDDEN,
        f"a received object {done} {pair!r}, which a peer may not do.",
        "If every party of the job may do that, add it to allowed_names in the backend's options.",
    )
