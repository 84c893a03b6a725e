"""Tensors as torch pickles them, read from a peer's bytes without torch's own loader.

A pickled tensor calls `torch.storage._load_from_bytes` with a stream inside the stream, which torch unpickles without
any restriction. Its loader with `weights_only` is no way out: up to torch 2.5, which FATE 2.2.0 is installed with, the
archive formats that it still recognises run code all the same (CVE-2025-32434). So the one format that pickled storages
have is read here: five short pickles, of which four hold no name and one names the storage's type, and the raw values.

The functions here stand in for torch's where a stream calls those; see `allowed_names.Name`.
"""

from __future__ import annotations

import collections
import io
import math
import pickle
import struct
import sys
from typing import Any, NamedTuple

import torch

from fedrdma_fate.fate.malformed import malformed
from fedrdma_fate.fate.segments import check_truth_values
from fedrdma_fate.fate.shapes import is_shape
from fedrdma_fate.fate.stream_memory import has_extensions, has_registered_extensions, is_bounded

_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
"""Of torch's format without an archive around it, the only one that storages are pickled in."""
_PROTOCOL_VERSION = 1001
_MAX_DIMENSIONS = 64  # torch's limit where it walks over tensors

_COUNT = struct.Struct("<q")

# what a storage's type is named in the stream, and the type of its values
_DTYPES = {
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "CharStorage": torch.int8,
    "ShortStorage": torch.int16,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
}


class Storage:
    """The values that one tensor of a stream is made over.

    Attributes:
        values: one-dimensional, in memory of their own.
        used: whether a tensor was made of it. A pickled tensor has a storage of its own, so a second one over the same
            is a few bytes in the stream, and a whole copy where it is pickled again.
    """

    __slots__ = ("used", "values")

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        self.used = False


def load_storage(content: bytes) -> Storage:
    """Instead of `torch.storage._load_from_bytes`.

    Args:
        content: as torch writes a storage.

    Raises:
        FateError: PAYLOAD_MALFORMED when it is anything else.
        Exception: as unpickling raises it.
    """
    stream = io.BytesIO(content)
    if _load(content, stream) != _MAGIC_NUMBER or _load(content, stream) != _PROTOCOL_VERSION:
        raise malformed("the storage of a tensor in it is not in the format that torch pickles one in")
    system = _load(content, stream)
    # torch swaps bytes where this says so; it is not worth the code
    if type(system) is not dict or system.get("little_endian") is not True or sys.byteorder != "little":
        raise malformed("the storage of a tensor in it is not of little endian")
    described = _load(content, stream)
    keys = _load(content, stream)
    # by type first: lists that hold one another take for ever to compare
    if type(described) is not _Described or type(keys) is not list or len(keys) != 1 or type(keys[0]) is not str:
        raise malformed("the storage of a tensor in it is not described as torch describes one")
    if keys[0] != described.key:
        raise malformed("the storage of a tensor in it is more than one storage")
    return Storage(_values(content, stream.tell(), described))


def is_tensor(arguments: tuple[Any, ...]) -> bool:
    """Whether `rebuild_tensor` may be called with these: every element has to lie in the storage, and only once."""
    if len(arguments) != 6:
        return False
    storage, offset, size, stride, requires_grad, hooks = arguments
    if type(storage) is not Storage or storage.used or type(offset) is not int or type(requires_grad) is not bool:
        return False
    # torch pickles its own sizes by calling torch.Size
    if type(size) not in (tuple, torch.Size) or type(stride) is not tuple or type(hooks) is not collections.OrderedDict:
        return False
    if hooks or len(size) != len(stride) or offset < 0:
        return False
    if not is_shape(size, _MAX_DIMENSIONS) or not is_shape(stride, _MAX_DIMENSIONS):
        return False
    count = math.prod(size)
    there: int = storage.values.numel()
    if not count:
        return offset <= there
    last: int = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    return count <= there and last < there


def rebuild_tensor(
    storage: Storage, offset: int, size: tuple[int, ...], stride: tuple[int, ...], requires_grad: bool, _hooks: Any
) -> torch.Tensor:
    """Instead of `torch._utils._rebuild_tensor_v2`; call it only with what `is_tensor` is true of.

    Raises:
        RuntimeError: when torch does not do it.
    """
    storage.used = True
    tensor = torch.as_strided(storage.values, size, stride, offset)
    return tensor.requires_grad_(requires_grad)


class _Described(NamedTuple):
    """What a stream says of its storage; nothing that it could change afterwards."""

    dtype: torch.dtype
    key: str
    items: int


class _StorageUnpickler(pickle.Unpickler):
    """Unpickles one part of a storage. Names become plain text, so that nothing in the stream can be called."""

    def find_class(self, module: str, name: str) -> Any:
        if module != "torch" or name not in _DTYPES:
            raise malformed("the storage of a tensor in it is of a type that torch does not pickle")
        return name

    def persistent_load(self, pid: Any) -> _Described:
        if type(pid) is not tuple or len(pid) != 6:
            raise malformed("a storage in it is not described as torch describes one")
        kind, name, key, _location, count, view = pid
        types = [type(value) for value in (kind, name, key, count)]
        if types != [str, str, str, int] or kind != "storage" or name not in _DTYPES or view is not None or count < 0:
            raise malformed("a storage in it is not described as torch describes one")
        return _Described(_DTYPES[name], key, count)


def _load(content: bytes, stream: io.BytesIO) -> Any:
    start = stream.tell()
    # see `unpickler.unpickle_unnamed`
    with_extensions = has_registered_extensions() and has_extensions(content, start)
    if with_extensions or not is_bounded(content, start):
        raise malformed("the storage of a tensor in it is not in the format that torch pickles one in")
    return _StorageUnpickler(stream).load()


def _values(content: bytes, at: int, described: _Described) -> torch.Tensor:
    item_bytes = torch.empty(0, dtype=described.dtype).element_size()
    start = at + _COUNT.size
    if len(content) - start != described.items * item_bytes or _COUNT.unpack_from(content, at)[0] != described.items:
        raise malformed("the storage of a tensor in it is not as long as it says")
    raw = bytearray(memoryview(content)[start:])
    values = torch.frombuffer(raw, dtype=described.dtype) if raw else torch.empty(0, dtype=described.dtype)
    check_truth_values(values)
    return values
