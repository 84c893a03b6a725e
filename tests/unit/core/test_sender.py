"""The sending state machine, step by step. More than 500 lines: many steps of one machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from fedrdma_fate.core.actions import Action, ComputeDigest, Failed, Finished, SendFrame, WriteChunk, WriteHeader
from fedrdma_fate.core.digest import payload_digest
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.sender import GRPC_WINDOW, SLOWEST_BYTES_PER_SECOND, Sender, SenderState, SendSettings
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import Abort, Mode
from fedrdma_fate.wire.header import HeaderKind

MODES: list[Mode] = ["grpc", "fedrdma", "fedrdma-e"]
PLAN = ChunkPlan(10, 4)
ENABLED = ChunkPlan(10, 4, 1)
EMPTY = ChunkPlan(0, 4)


def sender(mode: Mode, plan: ChunkPlan = PLAN, **settings: float) -> Sender:
    return Sender(7, plan, SendSettings(mode, **settings))  # type: ignore[arg-type]


def answered(machine: Sender, actions: Iterable[Action]) -> list[Action]:
    """The actions, each ComputeDigest answered at once (with 100 + index) and replaced by what came of it."""
    done: list[Action] = []
    for action in actions:
        if isinstance(action, ComputeDigest):
            done += answered(machine, machine.on_digest(action.chunk.index, 100 + action.chunk.index))
        else:
            done.append(action)
    return done


def chunks(actions: Iterable[Action]) -> list[int]:
    return [action.chunk.index for action in actions if isinstance(action, WriteChunk)]


def headers(actions: Iterable[Action]) -> list[WriteHeader]:
    return [action for action in actions if isinstance(action, WriteHeader)]


def complete(machine: Sender, actions: Iterable[Action], now: float = 0.0) -> list[Action]:
    """What comes of the completions of all writes among the actions."""
    writes = [action for action in actions if isinstance(action, WriteChunk | WriteHeader)]
    return [
        following for write in writes for following in answered(machine, machine.on_write_done(write.work_request, now))
    ]


def send_all(machine: Sender) -> list[Action]:
    """Everything a sender does up to the wait for delivery, every write and chunk acknowledged in turn."""
    actions = answered(machine, machine.start(0.0))
    done = list(actions)
    while actions:
        following = complete(machine, actions)
        for index in chunks(actions):
            following += answered(machine, machine.on_chunk_ack(index, 0.0))
        done += following
        actions = following
    return done


# -- the order of writes ------------------------------------------------------------------------------------------


def test_fedrdma_sends_each_chunk_with_its_header_and_waits_for_its_ack() -> None:
    machine = sender("fedrdma")
    actions = answered(machine, machine.start(0.0))
    assert chunks(actions) == [0]
    (header,) = headers(actions)
    assert header.header.kind is HeaderKind.CHUNK
    assert (header.header.index, header.header.offset, header.header.length, header.header.digest) == (0, 0, 4, 100)
    assert (header.header.total_bytes, header.header.count) == (10, 3)
    assert complete(machine, actions) == [], "a completed write is not the receiver's ACK"
    assert chunks(answered(machine, machine.on_chunk_ack(0, 0.0))) == [1]


def test_fedrdma_writes_every_chunk_to_the_staging_area() -> None:
    machine = sender("fedrdma")
    writes = [action for action in send_all(machine) if isinstance(action, WriteChunk)]
    assert {write.at for write in writes} == {machine.layout.staged_chunk_at}


def test_fedrdma_computes_the_next_digest_while_a_chunk_is_on_its_way() -> None:
    machine = sender("fedrdma")
    machine.start(0.0)
    assert machine.on_digest(0, 100)[1:] == [ComputeDigest(PLAN.chunk(1))]


def test_a_digest_that_is_being_computed_is_not_asked_for_again() -> None:
    machine = sender("fedrdma")
    machine.start(0.0)
    machine.on_digest(0, 100)
    (write,) = machine.on_chunk_ack(0, 0.0)
    assert isinstance(write, WriteChunk)
    assert headers(machine.on_digest(1, 101)), "the answer asked for ahead serves"


def test_fedrdma_e_sends_from_the_last_chunk_to_the_first_and_one_header_right_behind_chunk_1() -> None:
    machine = sender("fedrdma-e")
    first = answered(machine, machine.start(0.0))
    assert chunks(first) == [2]
    second = complete(machine, first)
    assert chunks(second) == [1]
    last = complete(machine, second)
    assert [type(action) for action in last] == [WriteChunk, WriteHeader]
    (header,) = headers(last)
    assert header.at == 0
    assert header.header.kind is HeaderKind.PAYLOAD
    assert header.header.digest == payload_digest([100, 101, 102])
    assert machine.state is SenderState.AWAITING_DELIVERY


def test_grpc_keeps_a_window_in_flight_and_sends_its_header_when_all_have_arrived() -> None:
    machine = sender("grpc", ChunkPlan(GRPC_WINDOW + 2, 1))
    window = answered(machine, machine.start(0.0))
    assert chunks(window) == list(range(GRPC_WINDOW))
    rest = complete(machine, window)
    assert chunks(rest) == [GRPC_WINDOW, GRPC_WINDOW + 1]
    assert headers(rest) == []
    assert [type(action) for action in complete(machine, rest)] == [WriteHeader]


@pytest.mark.parametrize("mode", ["fedrdma", "fedrdma-e"])
def test_the_link_enable_chunk_goes_first_and_alone(mode: Mode) -> None:
    machine = sender(mode, ENABLED)
    actions = answered(machine, machine.start(0.0))
    (write,) = [action for action in actions if isinstance(action, WriteChunk)]
    assert (write.chunk.index, write.chunk.length) == (3, 1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("plan", [PLAN, ENABLED, ChunkPlan(1, 4)], ids=["plain", "enabled", "one chunk"])
def test_every_chunk_is_sent_once_and_delivery_ends_it(mode: Mode, plan: ChunkPlan) -> None:
    machine = sender(mode, plan)
    actions = send_all(machine)
    assert sorted(chunks(actions)) == list(range(plan.count))
    assert len(headers(actions)) == (plan.count if mode == "fedrdma" else 1)
    assert machine.state is SenderState.AWAITING_DELIVERY
    assert machine.on_delivered(1.0) == [Finished()]
    assert machine.on_delivered(1.0) == []
    assert (machine.arrived_bytes, machine.resent_bytes) == (plan.total_bytes, 0)


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_payload_is_one_payload_header(mode: Mode) -> None:
    machine = sender(mode, EMPTY)
    (write,) = machine.start(0.0)
    assert isinstance(write, WriteHeader)
    assert (write.header.kind, write.header.digest) == (HeaderKind.PAYLOAD, payload_digest([]))
    assert machine.on_delivered(0.0) == [Finished()]


@pytest.mark.parametrize("mode", MODES)
def test_work_requests_are_never_used_twice(mode: Mode) -> None:
    machine = sender(mode)
    actions = send_all(machine)
    machine.pause()
    actions += answered(machine, machine.resume(0.0, same_slot=False))
    requests = [action.work_request for action in actions if isinstance(action, WriteChunk | WriteHeader)]
    assert len(set(requests)) == len(requests)


# -- late, stale and repeated events ------------------------------------------------------------------------------


def test_delivery_may_overtake_the_last_completion() -> None:
    machine = sender("fedrdma-e", ChunkPlan(4, 4))
    actions = answered(machine, machine.start(0.0))
    assert machine.on_delivered(0.0) == [Finished()]
    assert complete(machine, actions) == []
    assert machine.state is SenderState.DELIVERED


def test_a_repeated_completion_or_ack_changes_nothing() -> None:
    machine = sender("fedrdma")
    actions = answered(machine, machine.start(0.0))
    answered(machine, machine.on_chunk_ack(0, 0.0))
    assert machine.on_chunk_ack(0, 0.0) == []
    assert complete(machine, actions) == []
    assert machine.arrived_bytes == 4


def test_an_ack_of_a_chunk_that_is_not_in_flight_is_ignored() -> None:
    machine = sender("fedrdma")
    machine.start(0.0)
    assert machine.on_chunk_ack(2, 0.0) == []
    assert machine.on_chunk_ack(99, 0.0) == []
    assert machine.arrived_bytes == 0


@pytest.mark.parametrize("mode", ["grpc", "fedrdma-e"])
def test_a_chunk_ack_has_no_meaning_in_the_other_modes(mode: Mode) -> None:
    machine = sender(mode)
    machine.start(0.0)
    assert machine.on_chunk_ack(0, 0.0) == []
    assert machine.arrived_bytes == 0


def test_an_ack_that_comes_before_the_digest_posts_no_header_for_the_acknowledged_chunk() -> None:
    machine = sender("fedrdma", ChunkPlan(8, 4))
    machine.start(0.0)
    assert chunks(machine.on_chunk_ack(0, 0.0)) == [1]
    assert machine.on_digest(0, 100) == []
    assert [header.header.index for header in headers(machine.on_digest(1, 101))] == [1]


def test_a_completion_from_before_a_pause_is_not_taken_for_one_of_the_new_path() -> None:
    machine = sender("fedrdma-e")
    old = answered(machine, machine.start(0.0))
    machine.pause()
    new = answered(machine, machine.resume(0.0, same_slot=True))
    assert complete(machine, old) == []
    assert machine.arrived_bytes == 0
    assert chunks(complete(machine, new)) == [1]


def test_a_header_completion_from_before_a_pause_is_no_progress() -> None:
    machine = sender("fedrdma-e", ChunkPlan(4, 4), idle_timeout=5.0)
    (old,) = headers(answered(machine, machine.start(0.0)))
    machine.pause()
    machine.resume(1.0, same_slot=True)
    before = machine.timer()
    machine.on_write_done(old.work_request, 3.0)
    assert machine.timer() == before


@pytest.mark.parametrize("index", [-1, 3])
def test_a_digest_of_no_chunk_is_ignored(index: int) -> None:
    machine = sender("fedrdma-e")
    machine.start(0.0)
    assert machine.on_digest(index, 1) == []


# -- pause and resume ---------------------------------------------------------------------------------------------


def test_in_the_same_slot_only_what_had_not_arrived_is_sent_again() -> None:
    machine = sender("fedrdma-e")
    complete(machine, answered(machine, machine.start(0.0)))
    machine.pause()
    assert machine.state is SenderState.PAUSED
    actions = answered(machine, machine.resume(1.0, same_slot=True))
    assert chunks(actions) == [1]
    assert chunks(complete(machine, actions)) == [0]
    assert machine.resent_bytes == 4


def test_in_a_new_slot_everything_is_sent_again() -> None:
    machine = sender("grpc")
    complete(machine, answered(machine, machine.start(0.0)))
    machine.pause()
    assert chunks(answered(machine, machine.resume(1.0, same_slot=False))) == [0, 1, 2]
    assert machine.resent_bytes == 10
    assert machine.arrived_bytes == 0


@pytest.mark.parametrize("mode", ["grpc", "fedrdma-e"])
def test_after_everything_had_arrived_a_resumed_transfer_sends_its_header_again(mode: Mode) -> None:
    machine = sender(mode)
    send_all(machine)
    machine.pause()
    actions = machine.resume(0.0, same_slot=True)
    assert [type(action) for action in actions] == [WriteHeader]
    assert machine.state is SenderState.AWAITING_DELIVERY


def test_fedrdma_has_nothing_to_send_again_when_every_chunk_was_acknowledged() -> None:
    machine = sender("fedrdma")
    send_all(machine)
    machine.pause()
    assert machine.resume(0.0, same_slot=True) == []
    assert machine.state is SenderState.AWAITING_DELIVERY


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("answer_while_paused", [True, False], ids=["answered while paused", "answered later"])
def test_a_pause_while_a_digest_is_being_computed_loses_nothing(mode: Mode, answer_while_paused: bool) -> None:
    machine = sender(mode, ChunkPlan(4, 4))
    machine.start(0.0)
    machine.pause()
    if answer_while_paused:
        assert machine.on_digest(0, 100) == []
    actions = machine.resume(0.0, same_slot=True)
    if not answer_while_paused:
        assert ComputeDigest(PLAN.chunk(0)) in actions, "a driver may have dropped the question with the path"
        actions += machine.on_digest(0, 100)
        assert machine.on_digest(0, 100) == [], "and a second answer does no harm"
    following = complete(machine, actions)
    assert len(headers([*actions, *following])) == 1


def test_a_pause_before_the_start_or_after_the_end_has_no_effect() -> None:
    machine = sender("fedrdma")
    machine.pause()
    assert machine.state is SenderState.IDLE
    machine.cancel(ErrorCode.SESSION_CLOSED, "gone")
    machine.pause()
    assert machine.state is SenderState.FAILED


@pytest.mark.parametrize("mode", MODES)
def test_delivery_while_paused_ends_the_transfer_and_resuming_it_then_does_nothing(mode: Mode) -> None:
    machine = sender(mode)
    send_all(machine)
    machine.pause()
    assert machine.on_delivered(0.0) == [Finished()]
    assert machine.resume(0.0, same_slot=True) == []


def test_start_and_resume_out_of_turn_are_errors_of_the_caller() -> None:
    machine = sender("fedrdma")
    with pytest.raises(RuntimeError, match="idle, not paused"):
        machine.resume(0.0, same_slot=True)
    machine.start(0.0)
    with pytest.raises(RuntimeError, match="sending, not idle"):
        machine.start(0.0)


def test_a_transfer_cancelled_before_its_grant_came_does_not_start() -> None:
    machine = sender("fedrdma")
    machine.cancel(ErrorCode.SESSION_CLOSED, "gone")
    assert machine.start(0.0) == []
    assert machine.state is SenderState.FAILED


# -- sending again ------------------------------------------------------------------------------------------------


def test_a_damaged_payload_is_sent_again_in_order_with_a_header_behind() -> None:
    machine = sender("fedrdma-e")
    send_all(machine)
    actions = answered(machine, machine.on_resend([0, 1, 2], 0.0))
    sent = list(actions)
    while actions:
        actions = complete(machine, actions)
        sent += actions
    assert chunks(sent) == [2, 1, 0]
    assert [type(action) for action in sent][-1] is WriteHeader
    assert machine.resent_bytes == 10


@pytest.mark.parametrize("mode", ["grpc", "fedrdma-e"])
def test_a_request_without_chunks_is_for_the_header_only(mode: Mode) -> None:
    machine = sender(mode)
    send_all(machine)
    actions = machine.on_resend([], 0.0)
    assert [type(action) for action in actions] == [WriteHeader]
    assert machine.resent_bytes == 0


@pytest.mark.parametrize("asked", [[0], [], [2]], ids=["it", "unknown which", "another"])
def test_fedrdma_sends_the_damaged_chunk_in_the_staging_area_again_whichever_the_receiver_names(
    asked: list[int],
) -> None:
    machine = sender("fedrdma")
    answered(machine, machine.start(0.0))
    actions = answered(machine, machine.on_resend(asked, 0.0))
    assert [type(action) for action in actions] == [WriteChunk, WriteHeader]
    assert chunks(actions) == [0]
    assert chunks(answered(machine, machine.on_chunk_ack(0, 0.0))) == [1]
    assert chunks(answered(machine, machine.on_chunk_ack(1, 0.0))) == [2], "nothing is queued twice"
    assert machine.on_chunk_ack(2, 0.0) == []
    assert machine.state is SenderState.AWAITING_DELIVERY


def test_a_header_is_never_written_for_a_chunk_that_is_no_longer_in_the_staging_area() -> None:
    machine = sender("fedrdma")
    machine.start(0.0)
    machine.on_digest(0, 100)
    machine.on_chunk_ack(0, 0.0)
    again = machine.on_resend([0], 0.0)
    assert [header.header.index for header in headers(again)] == [0]
    assert headers(machine.on_digest(1, 101)) == [], "chunk 1 was in the staging area before"
    assert chunks(machine.on_chunk_ack(0, 0.0)) == [1]


def test_a_chunk_asked_for_again_before_its_completion_is_not_taken_for_arrived() -> None:
    machine = sender("fedrdma-e", ChunkPlan(4, 4))
    damaged = answered(machine, machine.start(0.0))
    answered(machine, machine.on_resend([0], 0.0))
    complete(machine, damaged)
    assert machine.arrived_bytes == 0


def test_damage_reported_while_paused_is_sent_again_on_resuming() -> None:
    machine = sender("fedrdma-e")
    send_all(machine)
    machine.pause()
    assert machine.on_resend([1], 0.0) == []
    actions = answered(machine, machine.resume(0.0, same_slot=True))
    assert chunks(actions) == [1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("paused", [False, True], ids=["sending", "paused"])
def test_a_request_for_chunks_that_do_not_exist_aborts_the_transfer(mode: Mode, paused: bool) -> None:
    machine = sender(mode)
    machine.start(0.0)
    if paused:
        machine.pause()
    abort, failed = machine.on_resend([1, 3], 0.0)
    assert isinstance(failed, Failed)
    assert failed.code is ErrorCode.UNEXPECTED_EVENT
    assert abort == SendFrame(Abort(7, "FR305", failed.reason))


@pytest.mark.parametrize("mode", MODES)
def test_a_receiver_that_keeps_asking_again_is_given_up(mode: Mode) -> None:
    machine = sender(mode, max_resends=5)
    machine.start(0.0)
    for _ in range(5):
        assert not machine.finished
        machine.on_resend([0], 0.0)
    assert isinstance(machine.on_resend([0], 0.0)[-1], Failed)


@pytest.mark.parametrize("mode", MODES)
def test_a_receiver_that_has_the_same_chunk_sent_for_ever_is_given_up_though_it_arrives_each_time(mode: Mode) -> None:
    machine = sender(mode, max_resends=5)
    send_all(machine)
    for _ in range(5):
        sent = answered(machine, machine.on_resend([0], 0.0))
        complete(machine, sent)
        machine.on_chunk_ack(0, 0.0)
        assert not machine.finished
    abort, failed = machine.on_resend([0], 0.0)
    assert isinstance(failed, Failed)
    assert failed.code is ErrorCode.UNEXPECTED_EVENT
    assert abort == SendFrame(Abort(7, "FR305", failed.reason))


def test_damage_now_and_then_does_not_add_up_while_chunks_arrive() -> None:
    machine = sender("fedrdma", ChunkPlan(20, 1), max_resends=2)
    answered(machine, machine.start(0.0))
    for index in range(20):
        answered(machine, machine.on_resend([index], 0.0))
        answered(machine, machine.on_chunk_ack(index, 0.0))
    assert machine.state is SenderState.AWAITING_DELIVERY


# -- before the start and after the end ---------------------------------------------------------------------------


EVENTS: dict[str, Callable[[Sender], list[Action]]] = {
    "on_digest": lambda machine: machine.on_digest(0, 1),
    "on_write_done": lambda machine: machine.on_write_done(1, 0.0),
    "on_chunk_ack": lambda machine: machine.on_chunk_ack(0, 0.0),
    "on_resend": lambda machine: machine.on_resend([0], 0.0),
    "on_bad_resend": lambda machine: machine.on_resend([99], 0.0),
    "on_delivered": lambda machine: machine.on_delivered(0.0),
    "on_refused": lambda machine: machine.on_refused(ErrorCode.SESSION_CLOSED, "gone"),
    "cancel": lambda machine: machine.cancel(ErrorCode.SESSION_CLOSED, "gone"),
    "on_timer": lambda machine: machine.on_timer(1e9),
    "start": lambda machine: machine.start(0.0),
    "resume": lambda machine: machine.resume(0.0, same_slot=True),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("event", EVENTS)
def test_nothing_happens_after_the_end(mode: Mode, event: str) -> None:
    delivered, failed = sender(mode), sender(mode)
    for machine in (delivered, failed):
        answered(machine, machine.start(0.0))
    delivered.on_delivered(0.0)
    failed.on_refused(ErrorCode.SESSION_CLOSED, "gone")
    assert EVENTS[event](delivered) == []
    assert EVENTS[event](failed) == []
    assert (delivered.state, failed.state) == (SenderState.DELIVERED, SenderState.FAILED)


@pytest.mark.parametrize("event", ["on_write_done", "on_chunk_ack", "on_resend", "on_bad_resend", "on_delivered"])
def test_what_a_peer_says_of_a_transfer_not_yet_begun_is_ignored(event: str) -> None:
    machine = sender("fedrdma")
    assert EVENTS[event](machine) == []
    assert machine.state is SenderState.IDLE
    assert chunks(machine.start(0.0)) == [0]


def test_a_refusal_ends_the_transfer_with_the_receivers_reason() -> None:
    machine = sender("fedrdma-e")
    machine.start(0.0)
    assert machine.on_refused(ErrorCode.SPILL_FAILED, "disk full") == [Failed(ErrorCode.SPILL_FAILED, "disk full")]


# -- time ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_transfer_that_stalls_is_aborted_after_the_idle_timeout(mode: Mode) -> None:
    machine = sender(mode, idle_timeout=5.0)
    answered(machine, machine.start(100.0))
    due = machine.timer()
    assert due == pytest.approx(105.0, abs=1e-3)
    assert due is not None
    assert machine.on_timer(due - 0.01) == []
    abort, failed = machine.on_timer(due)
    assert isinstance(abort, SendFrame)
    assert isinstance(failed, Failed)
    assert failed.code is ErrorCode.IDLE_TIMEOUT
    assert "0 of 10 bytes" in failed.reason
    assert machine.timer() is None


def test_delivery_that_never_comes_times_out() -> None:
    machine = sender("fedrdma-e", idle_timeout=5.0)
    send_all(machine)
    assert isinstance(machine.on_timer(5.0)[-1], Failed)


def test_every_completion_and_ack_puts_the_timeout_off() -> None:
    machine = sender("fedrdma", idle_timeout=5.0)
    chunk, header = answered(machine, machine.start(0.0))
    assert isinstance(chunk, WriteChunk)
    assert isinstance(header, WriteHeader)
    due = [machine.timer()]
    machine.on_write_done(chunk.work_request, 3.0)
    due.append(machine.timer())
    machine.on_write_done(header.work_request, 6.0)
    due.append(machine.timer())
    machine.on_chunk_ack(0, 9.0)
    due.append(machine.timer())
    machine.on_resend([1], 12.0)
    due.append(machine.timer())
    assert due == [pytest.approx(start + 5.0, abs=1e-3) for start in (0.0, 3.0, 6.0, 9.0, 12.0)]


def test_digests_and_stale_events_do_not_put_the_timeout_off() -> None:
    machine = sender("fedrdma", idle_timeout=5.0)
    machine.start(0.0)
    before = machine.timer()
    machine.on_digest(0, 1)
    machine.on_write_done(999, 4.0)
    machine.on_chunk_ack(2, 4.0)
    assert machine.timer() == before


def test_a_large_write_is_not_timed_out_while_a_slow_link_may_still_carry_it() -> None:
    payload = 600 * SLOWEST_BYTES_PER_SECOND
    machine = sender("fedrdma-e", ChunkPlan(payload, payload), idle_timeout=60.0)
    answered(machine, machine.start(0.0))
    assert machine.in_flight_bytes == payload
    assert machine.on_timer(600.0) == []
    assert machine.on_timer(659.0) == []
    assert isinstance(machine.on_timer(660.0)[-1], Failed)


def test_a_paused_transfer_has_no_timeout_and_a_resumed_one_a_fresh_one() -> None:
    machine = sender("grpc", idle_timeout=5.0)
    machine.start(0.0)
    machine.pause()
    assert machine.timer() is None
    assert machine.on_timer(1e9) == []
    machine.resume(1000.0, same_slot=True)
    assert machine.timer() == pytest.approx(1005.0, abs=1e-3)
