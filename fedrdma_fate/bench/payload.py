"""What is sent: arrays shaped as FATE's own, or plain bytes, with contents that show any misplaced or stale page."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xxhash

from fedrdma_fate.wire.errors import ConfigError, ErrorCode

Array = npt.NDArray[Any]
DType = Literal["float64", "uint8"]

# GPT-2 small: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, and its published weights
GPT2_WIDTH = 768
GPT2_LAYERS = 12
GPT2_VOCABULARY = 50257
GPT2_POSITIONS = 1024

_STAMP_BYTES = 4096
"""A page: one value in each is changed for every iteration."""


@dataclasses.dataclass(frozen=True, slots=True)
class PayloadSpec:
    """Shapes of a payload.

    Attributes:
        name: as on the command line.
        shapes: one per array.
        dtype: of all of them.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: DType

    @property
    def total_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(math.prod(shape) for shape in self.shapes) * np.dtype(self.dtype).itemsize

    def arrays_in(self, buffer: Array) -> list[Array]:
        """The arrays as views of a flat buffer that begins with them, one behind the other."""
        values = buffer.reshape(-1).view(np.uint8)[: self.total_bytes].view(self.dtype)
        return [values[at : at + math.prod(shape)].reshape(shape) for at, shape in self._places()]

    def _places(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        at = 0
        for shape in self.shapes:
            yield at, shape
            at += math.prod(shape)


class PayloadArrays:
    """The arrays themselves, in one warm buffer.

    Attributes:
        spec: their shapes.
        flat: the buffer, as bytes.
        arrays: views of it.
    """

    def __init__(self, spec: PayloadSpec) -> None:
        """Allocate and fill it; every page is touched."""
        values: Array = np.empty(spec.total_bytes // np.dtype(spec.dtype).itemsize, spec.dtype)
        generator = np.random.default_rng(spec.total_bytes)
        if spec.dtype == "float64":
            generator.random(out=values)
        else:
            values[:] = generator.integers(0, 256, values.size, np.uint8)
        self.spec = spec
        self.flat: npt.NDArray[np.uint8] = values.view(np.uint8)
        self.arrays = spec.arrays_in(self.flat)
        self._stamped = values[:: _STAMP_BYTES // values.itemsize]

    def stamp(self, iteration: int) -> str:
        """Change every page, so that what an earlier iteration left behind is not taken for this one; the digest."""
        self._stamped[:] = iteration % 251
        return digest(self.arrays)


def digest(arrays: Sequence[Array]) -> str:
    """A checksum over shapes, types and values; reads them where they lie."""
    state = xxhash.xxh3_128()
    for array in arrays:
        state.update(f"{array.dtype.str}{array.shape}".encode())
        state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return state.hexdigest()


def plain_bytes(count: int) -> PayloadSpec:
    """One array of bytes."""
    return PayloadSpec(f"{count} bytes", ((count,),), "uint8")


def named_payload(name: str) -> PayloadSpec:
    """`gpt2-full`: every parameter of the 124M-parameter GPT-2; `lora-RANK`: LoRA adapters on its c_attn.

    Raises:
        ConfigError: CONFIG_BAD_VALUE for any other name.
    """
    if name == "gpt2-full":
        return PayloadSpec(name, _gpt2_shapes(), "float64")
    match = re.fullmatch(r"lora-([1-9][0-9]{0,4})", name)
    if match is None:
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE,
            f"there is no payload {name!r}.",
            "Write gpt2-full, or lora-RANK with a rank such as lora-8, or give --bytes.",
        )
    rank = int(match[1])
    return PayloadSpec(name, ((rank, GPT2_WIDTH), (3 * GPT2_WIDTH, rank)) * GPT2_LAYERS, "float64")


def _gpt2_shapes() -> tuple[tuple[int, ...], ...]:
    width = GPT2_WIDTH
    norm: tuple[tuple[int, ...], ...] = ((width,), (width,))
    attention = ((width, 3 * width), (3 * width,), (width, width), (width,))
    feed_forward = ((width, 4 * width), (4 * width,), (4 * width, width), (width,))
    layer = (*norm, *attention, *norm, *feed_forward)
    return ((GPT2_VOCABULARY, width), (GPT2_POSITIONS, width), *(layer * GPT2_LAYERS), *norm)
