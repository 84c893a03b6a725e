"""What a round carries to and from each silo: FedComm's models, LoRA adapters, or so many bytes."""

from __future__ import annotations

import dataclasses

from fedrdma_fate.bench.payload import named_payload
from fedrdma_fate.quantities import QuantityError, parse_size
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

VGG5_BYTES = 2_338_944
"""FedComm's message of VGG-5: 25 tensors of 582,346 parameters and 323 running means and variances, pickled."""
VGG8_BYTES = 5_370_297
"""FedComm's message of VGG-8: 46 tensors of 1,337,898 parameters and 902 others, pickled."""

_VGG = {"vgg5": VGG5_BYTES, "vgg8": VGG8_BYTES}


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """One model.

    Attributes:
        name: as it was asked for.
        size: bytes, each way.
    """

    name: str
    size: int


def parse_model(text: str) -> Model:
    """`vgg5`, `vgg8`, `lora-RANK`, or a size such as `2.34MB`.

    Raises:
        ConfigError: CONFIG_BAD_VALUE: it is none of these.
    """
    name = text.strip()
    if name in _VGG:
        return Model(name, _VGG[name])
    if name.startswith("lora-"):
        return Model(name, named_payload(name).total_bytes)
    try:
        return Model(name, parse_size(name))
    except QuantityError as error:
        problem = f"--model: {text!r} is not vgg5, vgg8, lora-RANK or a size."
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, problem) from error
