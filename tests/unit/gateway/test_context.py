"""What the parts of a gateway share: ids of transfers."""

from __future__ import annotations

from fedrdma_fate.gateway.context import GatewayContext


def test_transfer_ids_of_two_runs_do_not_meet() -> None:
    firsts = {GatewayContext.__dataclass_fields__["next_transfer"].default_factory() for _ in range(100)}  # type: ignore[misc]
    assert len(firsts) == 100
    assert all(0 <= first < 2**52 for first in firsts)
