"""A tmpfs that is full, as any user of the host can make it: nothing that gateways need lies in it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import ROOT

IN_NAMESPACE = ("unshare", "--map-root-user", "--mount", "sh", "-c")

COMMON = """
import contextlib, os, sys
from pathlib import Path

shared, elsewhere = Path(sys.argv[1]), Path(sys.argv[2])
MIB = 1 << 20

def fill(leave=0):
    '''Take all there is, but for so many bytes.'''
    with (shared / "filler").open("wb", buffering=0) as filler:
        with contextlib.suppress(OSError):
            while filler.write(bytes(4096)):
                pass
        filler.truncate(filler.tell() - leave)
"""

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


def in_small_tmpfs(tmp_path: Path, program: str, *arguments: str, size: str = "4m") -> list[str]:
    """What a program prints that sees a small tmpfs of its own, in a mount namespace that ends with it."""
    shared, elsewhere = tmp_path / "shared", tmp_path / "elsewhere"
    shared.mkdir()
    elsewhere.mkdir()
    mount = f"mount -t tmpfs -o size={size} none {shared}"
    if not shutil.which("unshare") or subprocess.run([*IN_NAMESPACE, mount], capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted in a user namespace here")
    python = [sys.executable, "-c", COMMON + program, str(shared), str(elsewhere), *arguments]
    done = subprocess.run(
        [*IN_NAMESPACE, f'{mount} && exec "$@"', "sh", *python], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stdout}{done.stderr[-3000:]}"
    return done.stdout.splitlines()


@pytest.mark.parametrize("memory", ["warm", "cold"])
def test_gateways_go_on_and_connect_anew_where_the_tmpfs_is_full(tmp_path: Path, memory: str) -> None:
    """Their memory is not in it."""
    assert in_small_tmpfs(tmp_path, GATEWAYS, memory) == ["over shm True"]
