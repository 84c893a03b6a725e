"""FedComm's VGG-5 and VGG-8, to the layer."""

from __future__ import annotations

import torch
from torch import nn

CLASSES = 10
_HIDDEN = 128
"""Width between the two dense layers, which have no activation between them."""
_DENSE_DEVIATION = 0.01
"""Of what dense weights are drawn from; biases begin at 0."""
_POOL = "M"
_LAYERS: dict[str, tuple[int | str, ...]] = {
    "vgg5": (32, _POOL, 64, _POOL, 64),
    "vgg8": (32, 32, _POOL, 64, 64, _POOL, 128, 128),
}
"""A number is a 3×3 convolution of so many channels, with batch norm and ReLU; M halves height and width."""
NAMES = tuple(_LAYERS)


def build(name: str, seed: int) -> nn.Sequential:
    """A model for pictures of 3×32×32, with weights drawn from a seed.

    Args:
        name: `vgg5` or `vgg8`.

    Raises:
        KeyError: it is neither.
    """
    channels, side = 3, 32
    layers: list[nn.Module] = []
    for layer in _LAYERS[name]:
        if isinstance(layer, str):
            layers.append(nn.MaxPool2d(2, 2))
            side //= 2
            continue
        layers += [nn.Conv2d(channels, layer, 3, padding=1), nn.BatchNorm2d(layer), nn.ReLU()]
        channels = layer
    layers += [nn.Flatten(), nn.Linear(channels * side * side, _HIDDEN), nn.Linear(_HIDDEN, CLASSES)]
    model = nn.Sequential(*layers)
    _draw(model, torch.Generator().manual_seed(seed))
    return model


def _draw(model: nn.Module, generator: torch.Generator) -> None:
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                # Kaiming's for ReLU, by the outputs of a layer
                outputs = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
                module.weight.normal_(0.0, (2.0 / outputs) ** 0.5, generator=generator)
            elif isinstance(module, nn.Linear):
                module.weight.normal_(0.0, _DENSE_DEVIATION, generator=generator)
            if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
                module.bias.zero_()
