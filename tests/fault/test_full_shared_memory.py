"""A tmpfs that is full, as any user of the host can make it: nothing that gateways need lies in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.small_tmpfs import in_small_tmpfs

GATEWAYS = """
from tests.support.sites import InThread, eventually, party, start_gateways

memory = {"directory": str(shared), "send_bytes": "4MiB", "receive_bytes": "4MiB", "ring_slots": 1,
          "ring_slot_bytes": "256KiB", "warm": sys.argv[3] == "warm"}
runner = InThread()
with start_gateways({"a": ["guest:1"], "b": ["host:2"]}, elsewhere, runner=runner, memory=memory,
                    transport="shm", shm={"lend": False}) as sites:
    peer = runner.gateways["a"]._assembly.peers["b"]
    async def cut():
        peer._lose("cut by the test")
    def exchange(name):
        with sites["a"].client() as a, sites["b"].client() as b:
            lease = a.lease(MIB)
            lease.buffer[:] = os.urandom(16) * (MIB // 16)
            body = bytes(lease.buffer)
            lease.commit(name, "t", [party("host:2")], "object")
            received = b.get(name, "t", party("guest:1"), timeout=60)
            return bytes(received.buffer) == body
    assert exchange("before")
    fill()
    runner.run(cut())
    eventually(sites["a"].connected, 30)
    eventually(lambda: peer.paths.main is not None and peer.paths.main.up, 30)
    print("over", peer.paths.main_transport, exchange("after"))
"""


@pytest.mark.parametrize("memory", ["warm", "cold"])
def test_gateways_go_on_and_connect_anew_where_the_tmpfs_is_full(tmp_path: Path, memory: str) -> None:
    """Their memory is not in it."""
    assert in_small_tmpfs(tmp_path, GATEWAYS, memory) == ["over shm True"]
