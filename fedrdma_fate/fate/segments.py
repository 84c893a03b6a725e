"""Arrays, tensors and long byte strings as raw segments: described, written in place, compared, and viewed again."""

from __future__ import annotations

import dataclasses
import functools
import math
import pickle
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedrdma_fate.fate.copying import Placement
from fedrdma_fate.fate.layout import Segment, SegmentKind
from fedrdma_fate.fate.malformed import malformed, refuse, shown
from fedrdma_fate.wire.summand import MOST_DIMENSIONS

RAW_BYTES_FROM = 64 * 1024
"""Byte strings from this length on become segments."""

_COMPARE_BLOCK_BYTES = 1024 * 1024
"""Compared at once: bounds the copies that are made of arrays which are not contiguous."""

# A byte order, one type code and an item size; no objects, fields or subarrays. Times have a unit, as NumPy writes it:
# other spellings it reads as well, and divides by what stands behind a slash, be it zero.
_DTYPE_PATTERN = re.compile(
    r"[<>|](?:[biufcSUV][0-9]{1,9}|[mM]8(?:\[(?:[1-9][0-9]{0,8})?(?:[YMWDhms]|[munpfa]s)\])?)", re.ASCII
)

_TENSOR_STORAGE = {
    **{name: name for name in ("float16", "float32", "float64", "complex64", "complex128", "bool")},
    **{name: name for name in ("int8", "int16", "int32", "int64", "uint8")},
    # those NumPy has no name for, or torch cannot exchange with it, lie there as integers of their width
    "bfloat16": "int16",
    "complex32": "int32",
    "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2fnuz": "uint8",
    "uint16": "int16",
    "uint32": "int32",
    "uint64": "int64",
}


_REAL_TENSORS = frozenset(("float16", "bfloat16", "float32", "float64"))
_REAL_ARRAYS = frozenset(np.dtype(name).str for name in ("float16", "float32", "float64"))
"""Of whose elements some may be missing: of 2, 4 or 8 bytes, so that no chunk cuts one, and zeros are a value."""


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """What will be one segment.

    Attributes:
        kind: what the receiver makes of it.
        dtype: see `Segment`.
        shape: see `Segment`.
        storage: dtype of its items in the slot, in native byte order.
        read: the values in host memory, without a copy where they lie there. Raises PicklingError, with its cause,
            where torch refuses to give them.
    """

    kind: SegmentKind
    dtype: str
    shape: tuple[int, ...]
    storage: np.dtype[Any]
    read: Callable[[], npt.NDArray[Any]]

    @property
    def length(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * self.storage.itemsize

    @property
    def may_miss(self) -> bool:
        """Whether chunks of it may be missing where its task lets some be: real numbers, and not few in one row."""
        is_real = self.dtype in _REAL_TENSORS if self.kind == "tensor" else self.dtype in _REAL_ARRAYS
        is_small = len(self.shape) < 2 and self.length < RAW_BYTES_FROM
        return is_real and not is_small and self.length > 0

    def at(self, offset: int) -> Segment:
        """The table entry for this source."""
        return Segment(self.kind, self.dtype, self.shape, offset, self.length)

    def placed_at(self, start: int) -> Placement:
        """What writes the values at `start` in a buffer."""
        return Placement(start, self.length, self.storage, self.read)

    def equals(self, target: memoryview) -> bool:
        """Whether exactly these values lie in `length` bytes."""
        if not self.length:
            return True
        written: npt.NDArray[np.uint8] = np.frombuffer(target, np.uint8)
        values = self.read()
        if values.flags.c_contiguous and values.dtype == self.storage:
            return _same_bytes(values.reshape(-1).view(np.uint8), written)
        at = 0
        for block in _blocks(values):
            raw = np.ascontiguousarray(block, self.storage).reshape(-1).view(np.uint8)
            if not _same_bytes(raw, written[at : at + raw.size]):
                return False
            at += raw.size
        return True


def describe(value: object) -> Source | None:
    """The source for an object that travels as a raw segment, or None for one that is pickled FATE's way.

    Subclasses (masked arrays, wrapper tensors) are FATE's: what they mean is not in their buffer alone.
    """
    kind = type(value)
    if kind is bytes:
        return _byte_string("bytes", value) if len(value) >= RAW_BYTES_FROM else None  # type: ignore[arg-type]
    if kind is bytearray:
        return _byte_string("bytearray", value)  # type: ignore[arg-type]
    if kind is np.ndarray or kind is np.memmap:
        return _describe_array(value)  # type: ignore[arg-type]
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return _describe_tensor(value)
    return None


def bytes_source(value: bytes) -> Source:
    """The source for bytes, however few."""
    return _byte_string("bytes", value)


def restore(segment: Segment, body: memoryview) -> Any:
    """The object behind a segment; arrays and tensors are views of `body`.

    Raises:
        FateError: PAYLOAD_MALFORMED when the entry does not describe these bytes.
    """
    if segment.kind in ("bytes", "bytearray"):
        return bytes(body) if segment.kind == "bytes" else bytearray(body)
    is_tensor = segment.kind == "tensor"
    storage = _tensor_storage(segment.dtype) if is_tensor else _array_dtype(segment.dtype)
    if len(segment.shape) > MOST_DIMENSIONS or math.prod(segment.shape) * storage.itemsize != segment.length:
        raise malformed(f"{_described(segment)} is not {segment.length} bytes")
    try:
        array: npt.NDArray[Any] = (
            np.ndarray(segment.shape, storage, buffer=body) if segment.length else np.empty(segment.shape, storage)
        )
    except (ValueError, OverflowError) as error:
        refuse(f"{_described(segment)} cannot be made", error)
    check_truth_values(array)
    return torch.from_numpy(array).view(getattr(torch, segment.dtype)) if is_tensor else array


def item_bytes(segment: Segment) -> int:
    """Length of one item of an array or tensor.

    Raises:
        FateError: PAYLOAD_MALFORMED when it is none.
    """
    storage = _tensor_storage(segment.dtype) if segment.kind == "tensor" else _array_dtype(segment.dtype)
    return storage.itemsize


def check_truth_values(values: npt.NDArray[Any] | torch.Tensor) -> None:
    """Do nothing where an array or tensor has other items than truth values, or none of those but 0 and 1.

    NumPy and torch take any other byte as it is, and then contradict themselves: they count such items by adding them
    up, and compare and negate them bit by bit.

    Raises:
        FateError: PAYLOAD_MALFORMED.
    """
    if values.dtype not in (torch.bool, np.bool_):
        return
    array = values.numpy() if isinstance(values, torch.Tensor) else values
    if array.view(np.uint8).max(initial=0) > 1:
        raise malformed("a truth value in it is neither 0 nor 1")


def _described(segment: Segment) -> str:
    return f"shape {shown(str(segment.shape[:MOST_DIMENSIONS]))} of {shown(segment.dtype)}"


def _blocks(values: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """An array of any layout in pieces that are contiguous, and of bounded size, once copied in C order."""
    if values.nbytes <= _COMPARE_BLOCK_BYTES or values.ndim == 0:
        yield values
        return
    row_bytes = values.nbytes // values.shape[0]
    if row_bytes > _COMPARE_BLOCK_BYTES:
        for row in values:
            yield from _blocks(row)
        return
    rows = _COMPARE_BLOCK_BYTES // row_bytes
    for first in range(0, values.shape[0], rows):
        yield values[first : first + rows]


def _same_bytes(left: npt.NDArray[np.uint8], right: npt.NDArray[np.uint8]) -> bool:
    step = _COMPARE_BLOCK_BYTES
    return all(np.array_equal(left[at : at + step], right[at : at + step]) for at in range(0, left.size, step))


def _byte_string(kind: SegmentKind, value: bytes | bytearray) -> Source:
    raw = np.frombuffer(value, np.uint8) if value else np.empty(0, np.uint8)
    return Source(kind, "", raw.shape, raw.dtype, lambda: raw)


def _describe_array(array: npt.NDArray[Any]) -> Source | None:
    storage = array.dtype.newbyteorder("=")
    plain = not array.dtype.hasobject and array.dtype.fields is None and storage.itemsize > 0
    if not plain or not _DTYPE_PATTERN.fullmatch(storage.str):
        return None
    values = array.view(np.ndarray)
    return Source("ndarray", storage.str, values.shape, storage, lambda: values)


def _describe_tensor(tensor: Any) -> Source | None:
    name = str(tensor.dtype).removeprefix("torch.")
    dense = tensor.layout is torch.strided and not tensor.is_quantized and tensor.device.type != "meta"
    if not dense or tensor.dim() > MOST_DIMENSIONS or name not in _TENSOR_STORAGE:
        return None
    storage = _tensor_storage(name)
    return Source("tensor", name, tuple(tensor.shape), storage, functools.partial(_host_values, tensor, storage))


def _host_values(tensor: Any, storage: np.dtype[Any]) -> npt.NDArray[Any]:
    try:
        host = tensor.detach().cpu().resolve_conj().resolve_neg()
        values: npt.NDArray[Any] = host.view(getattr(torch, storage.name)).numpy()
    except (RuntimeError, TypeError) as error:
        # found only here: asking torch for the values may copy them from a device, which is done once, while writing
        raise pickle.PicklingError(str(error)) from error
    return values


def _tensor_storage(name: str) -> np.dtype[Any]:
    if name not in _TENSOR_STORAGE:
        raise malformed(f"a tensor of dtype {shown(name)}")
    return np.dtype(_TENSOR_STORAGE[name])


def _array_dtype(text: str) -> np.dtype[Any]:
    if not _DTYPE_PATTERN.fullmatch(text):
        raise malformed(f"an array of dtype {shown(text)}")
    try:
        dtype = np.dtype(text)
    except (TypeError, ValueError) as error:
        refuse(f"an array of dtype {text!r}", error)
    # NumPy's size of long text wraps around, to less than nothing
    if dtype.hasobject or dtype.fields is not None or dtype.subdtype is not None or dtype.itemsize <= 0:
        raise malformed(f"an array of dtype {text!r}")
    return dtype
