"""A get that fails because the gateway, or the task, has no descriptor left loses nothing: made again, it succeeds."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator

import pytest

from fedrdma_fate.client import client as client_module
from fedrdma_fate.client import rpc
from fedrdma_fate.memory.region import region_unusable
from fedrdma_fate.wire.errors import ErrorCode, GatewayError, MemoryPoolError
from fedrdma_fate.wire.frames import Mode
from tests.fault.test_gateway_out_of_descriptors import without_descriptors
from tests.support.sites import InProcesses, Sites, eventually, party, runner_of, start_gateways

A, B = party("guest:1"), party("host:2")
LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
BODY = os.urandom(1 << 20)
MODES: tuple[Mode, ...] = ("grpc", "fedrdma-e")
"""Received into the gateway's own memory, and lent by the other."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """Two gateways that lend, as processes; each test makes use of them in a session of its own."""
    with (
        tempfile.TemporaryDirectory() as shared,
        start_gateways(
            LAYOUT,
            tmp_path_factory.mktemp("descriptors"),
            runner=InProcesses(),
            memory={"directory": shared},
            transport="auto",
            shm={"lend": True},
        ) as running,
    ):
        yield running


def no_mapping(*_: object, **__: object) -> memoryview:
    raise region_unusable("memory of the gateway", OSError(12, "Cannot allocate memory"))


@contextlib.contextmanager
def gateway_without(sites: Sites) -> Iterator[None]:
    with without_descriptors(runner_of(sites).processes["b"].pid):
        yield


@contextlib.contextmanager
def task_without(_sites: Sites) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        # what a message does not tell the kernel to have room for is dropped, as where the process has no room
        patch.setattr(rpc, "MOST_DESCRIPTORS", 0)
        yield


@contextlib.contextmanager
def task_without_memory(_sites: Sites) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_module, "map_copy_on_write", no_mapping)
        yield


def lent(sites: Sites) -> int:
    return sum(peer["lent_messages"] for peer in sites["a"].status()["peers"])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lacking", [gateway_without, task_without, task_without_memory])
def test_a_get_that_cannot_hand_its_message_over_may_be_repeated(
    sites: Sites,
    session: str,
    mode: Mode,
    lacking: Callable[[Sites], contextlib.AbstractContextManager[None]],
) -> None:
    with sites["a"].client(session, mode=mode) as a, sites["b"].client(session) as b:
        # of the connection that the get goes by
        b.tolerate("other", "t", [A], 0.0)
        lease = a.lease(len(BODY))
        lease.buffer[:] = BODY
        lease.commit("m", "t", [B], "object")
        eventually(lambda: [each for each in sites["b"].events("delivered") if each["session"] == session])
        (delivered,) = (each for each in sites["b"].events("delivered") if each["session"] == session)
        assert delivered["mode"] == ("lent" if mode == "fedrdma-e" else mode)
        for _ in range(2):
            with lacking(sites), pytest.raises(MemoryPoolError) as caught:
                b.get("m", "t", A, timeout=10)
            assert caught.value.code is ErrorCode.REGION_UNAVAILABLE
        assert sites["b"].status()["mailbox"]["messages"] == 1
        received = b.get("m", "t", A, timeout=10)
        assert received.buffer == BODY
        with pytest.raises(GatewayError) as again:
            b.get("m", "t", A, timeout=0.1)
        assert again.value.code is ErrorCode.DUPLICATE_PULL
        del received
        eventually(lambda: lent(sites) == 0)
