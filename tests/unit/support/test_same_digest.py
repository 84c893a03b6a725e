"""The enemy's tool of `tests/fault/test_gateway_on_path.py`."""

from __future__ import annotations

import os

import pytest

from fedrdma_fate.core.digest import BLOCK_BYTES, block_digest
from tests.support.same_digest import with_same_digest


@pytest.mark.parametrize("length", [2_000, 100_000, BLOCK_BYTES])
def test_other_bytes_have_the_same_digest(length: int) -> None:
    block = os.urandom(length)
    other = with_same_digest(block)
    assert other != block
    assert len(other) == length
    assert block_digest(other) == block_digest(block)
