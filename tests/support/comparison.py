"""Deep, bit-for-bit comparison of objects with arrays and tensors in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def assert_same(found: Any, expected: Any, where: str = "value") -> None:
    """Fail unless both have the same types, shapes, dtypes and bits throughout."""
    if isinstance(expected, torch.Tensor):
        assert type(found) is torch.Tensor, where
        assert (found.dtype, tuple(found.shape)) == (expected.dtype, tuple(expected.shape)), where
        assert not found.requires_grad, where
        _assert_same_bytes(_bits(found), _bits(expected), where)
    elif isinstance(expected, np.ndarray) and not expected.dtype.hasobject:
        assert type(found) is np.ndarray, where
        assert (found.dtype, found.shape) == (expected.dtype.newbyteorder("="), expected.shape), where
        _assert_same_bytes(found.tobytes(), expected.astype(expected.dtype.newbyteorder("=")).tobytes(), where)
    elif isinstance(expected, np.ndarray):
        assert found.shape == expected.shape, where
        for index in np.ndindex(expected.shape):
            assert_same(found[index], expected[index], f"{where}[{index}]")
    elif isinstance(expected, dict):
        assert type(found) is type(expected), where
        assert list(found) == list(expected), where
        for key in expected:
            assert_same(found[key], expected[key], f"{where}[{key!r}]")
    elif isinstance(expected, list | tuple):
        assert type(found) is type(expected), where
        assert len(found) == len(expected), where
        for index, (left, right) in enumerate(zip(found, expected, strict=True)):
            assert_same(left, right, f"{where}[{index}]")
    else:
        assert type(found) is type(expected), where
        assert found == expected, where


def _bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1).resolve_conj().resolve_neg()
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


def _assert_same_bytes(found: bytes, expected: bytes, where: str) -> None:
    # not `assert found == expected`: the difference of two megabytes is no help to anybody
    same = found == expected
    assert same, f"{where} differs"
