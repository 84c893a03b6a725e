"""A tmpfs that is full, as any user of the host can make it: an error with a code, and no process dies of SIGBUS."""

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
from fedrdma_fate.memory.pool import SlotPool
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.wire.errors import FedRDMAError

shared, elsewhere = Path(sys.argv[1]), Path(sys.argv[2])
MIB = 1 << 20

def fill(leave=0):
    '''Take all there is, but for so many bytes.'''
    with (shared / "filler").open("wb", buffering=0) as filler:
        with contextlib.suppress(OSError):
            while filler.write(bytes(4096)):
                pass
        filler.truncate(filler.tell() - leave)

def refused(action):
    '''The code that it is refused with.'''
    try:
        action()
    except FedRDMAError as error:
        return error.code.value + (" No space left" if "No space left" in error.message else "")
    return "taken"
"""

KEY_TABLE = """
from fedrdma_fate.transport.shm import ShmTransport

region = SharedRegion.create(shared / "receive", MIB)
transport = ShmTransport(shared, region, SharedRegion.attach)
transport.open("active").close()
fill()
before = sorted(os.listdir(shared)), len(os.listdir("/proc/self/fd"))
def use():
    draft = transport.open("active")
    draft._keys.publish()
print(refused(use), (sorted(os.listdir(shared)), len(os.listdir("/proc/self/fd"))) == before)
(shared / "filler").unlink()
print(refused(use))
"""

PART_OF_A_KEY_TABLE = """
from fedrdma_fate.transport.shm_keys import KeyTable, TABLE_BYTES

fill(leave=TABLE_BYTES // 2)
try:
    KeyTable(shared / "keys")
except OSError as error:
    print(error.strerror, (shared / "keys").exists())
"""

FULL_KEY_TABLE = """
from fedrdma_fate.transport.shm_keys import ENTRIES, KeyTable, PeerKeys

table = KeyTable(shared / "keys")
fill()
peer = PeerKeys(shared / "keys")
keys = [table.publish() for _ in range(ENTRIES)]
for key in keys[::1000]:
    with peer.holding(key):
        pass
table.revoke(keys[-1])
print(len(keys))
"""

COLD_REGION = """
region = SharedRegion.create(shared / "send", 64 * MIB, warm=False)
pool = SlotPool(region, "send", region)
first = pool.lease(MIB, "task")
first.slot.view[:] = bytes([7]) * MIB
print(refused(lambda: pool.lease(32 * MIB, "task")))
fill()
print(refused(lambda: pool.lease(1, "task")), pool.stats().slots)
print(bytes(first.slot.view) == bytes([7]) * MIB)
first.release()
second = pool.lease(MIB, "task")
second.slot.view[:] = bytes([8]) * MIB
print(second.slot.length)
"""

COLD_PEER = """
from concurrent.futures import ThreadPoolExecutor
from fedrdma_fate.ports import RemoteSlot, Slot
from fedrdma_fate.transport.shm import ShmTransport

own = SharedRegion.create(shared / "own", MIB)
cold = SharedRegion.create(shared / "cold", 4 * MIB, warm=False)
pool = SlotPool(cold, "receive", cold)
transports = [ShmTransport(shared, region, SharedRegion.attach) for region in (own, cold)]
waiting, dialling = transports[1].open("passive"), transports[0].open("active")
with ThreadPoolExecutor(1) as executor:
    answered = executor.submit(waiting.connect, dialling.address, 5)
    sender, receiver = dialling.connect(waiting.address, 5), answered.result()
lease = pool.lease(MIB // 2, "peer")
granted = receiver.expose(1, lease.slot)
without_pages = receiver.expose(2, Slot(cold, 0, MIB))
fill()
own.view[:] = bytes([9]) * MIB
sender.post_write(1, Slot(own, 0, MIB // 2), granted, 0)
print(len(sender.progress()), bytes(lease.slot.view) == bytes([9]) * (MIB // 2))
def write():
    sender.post_write(2, Slot(own, 0, MIB), without_pages, 0)
    sender.progress()
print(refused(write))
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
    # the key tables of the link that is cut below stay, so that their room is not there for new ones
    links = {number: os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")}
    held = [os.dup(int(number)) for number, path in links.items() if ".keys" in path]
    assert len(held) >= 4
    fill()
    runner.run(cut())
    # where memory is cold, the slots that the cut gives back may be room enough for one of them
    other = runner.gateways["b"]._assembly.peers["a"]
    eventually(lambda: any("No space left" in each.paths.main.last_error for each in (peer, other)), 20)
    print("alive without", sites["a"].status()["peers"][0]["connected"])
    for number in held:
        os.close(number)
    (shared / "filler").unlink()
    eventually(sites["a"].connected, 30)
    print("and with room", exchange("after"))
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


def test_a_link_for_whose_keys_there_is_no_room_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    assert in_small_tmpfs(tmp_path, KEY_TABLE) == ["FR501 No space left True", "taken"]


def test_a_key_table_that_only_half_fits_is_refused_and_removed(tmp_path: Path) -> None:
    assert in_small_tmpfs(tmp_path, PART_OF_A_KEY_TABLE) == ["No space left on device False"]


def test_every_key_of_a_table_has_its_room_from_the_start(tmp_path: Path) -> None:
    assert in_small_tmpfs(tmp_path, FULL_KEY_TABLE) == ["65536"]


def test_a_slot_of_a_cold_region_without_room_is_refused_and_those_leased_before_are_whole(tmp_path: Path) -> None:
    printed = in_small_tmpfs(tmp_path, COLD_REGION)
    assert printed == ["FR404 No space left", "FR404 No space left 1", "True", str(1 << 20)]


def test_a_peers_cold_region_is_written_where_it_has_pages_and_ends_the_link_where_it_cannot(tmp_path: Path) -> None:
    assert in_small_tmpfs(tmp_path, COLD_PEER) == ["1 True", "FR504 No space left"]


@pytest.mark.parametrize("memory", ["warm", "cold"])
def test_a_gateway_lives_through_a_full_tmpfs_and_is_connected_again_when_there_is_room(
    tmp_path: Path, memory: str
) -> None:
    printed = in_small_tmpfs(tmp_path, GATEWAYS, memory, size="24m")
    assert printed == ["alive without True", "and with room True"]
