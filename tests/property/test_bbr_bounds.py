"""BBRv3 under any order of reports: what it paces at and lets be in flight stays within bounds."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from fedrdma_fate.core.path import PathState, Sample
from fedrdma_fate.core.x.bbr.bbr_controller import LEAST_WINDOW_CHUNKS, BbrController
from fedrdma_fate.core.x.controller import LEAST_RATE
from fedrdma_fate.core.x.estimators import MOST_RATE
from fedrdma_fate.core.x.flight_recorder import FlightRecorder, Snapshot

CHUNK = 16_384

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["send", "arrive", "lose", "report"]),
        st.integers(1, 64),
        st.floats(0, 3, allow_nan=False),
    ),
    max_size=80,
)
KNOWN = st.none() | st.builds(PathState, st.floats(1, 1e12), st.floats(1e-5, 10), st.none() | st.floats(0, 1))


@given(EVENTS, KNOWN, st.booleans())
def test_no_order_of_events_takes_rate_or_window_out_of_bounds(
    events: list[tuple[str, int, float]], known: PathState | None, proved: bool
) -> None:
    control = BbrController(known, proved=proved)
    control.chunk_bytes = CHUNK
    recorder, under_way = FlightRecorder(), list[Snapshot]()
    now, arrived, lost = 1.0, 0, 0
    for kind, count, seconds in events:
        now += seconds
        if kind == "send":
            under_way += [recorder.on_sent(CHUNK, CHUNK * (len(under_way) + k), now) for k in range(count)]
        for snapshot in [under_way.pop(0) for _ in range(min(count, len(under_way)))] if kind != "send" else []:
            if kind == "lose":
                recorder.on_lost(snapshot, CHUNK)
                lost += 1
            else:
                recorder.on_acknowledged(snapshot, CHUNK, now)
                arrived += 1
        if kind == "report":
            flight = recorder.take(CHUNK * len(under_way), control.min_rtt)
            control.on_sample(Sample(seconds or None, None, arrived, lost, 4, flight=flight), now)
            arrived = lost = 0
        assert LEAST_RATE <= control.rate <= MOST_RATE
        assert LEAST_WINDOW_CHUNKS * CHUNK <= control.window_bytes < math.inf
        assert control.in_flight_long_term >= 0
        state = control.state()
        assert state is None or (state.rate > 0 and state.min_rtt > 0 and 0 <= (state.loss or 0) <= 1)
