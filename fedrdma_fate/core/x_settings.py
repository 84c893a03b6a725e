"""Parameters of the sending half of a `fedrdma-x` transfer."""

from __future__ import annotations

import dataclasses

from fedrdma_fate.core.x_repair import RepairPlan


@dataclasses.dataclass(frozen=True, slots=True)
class XSendSettings:
    """Parameters of a sender.

    Attributes:
        tag: what the immediates of this transfer carry: the grant's id modulo 4096.
        reliable: whether the queue pairs are RC (completions move the window) or UC (reports do).
        queue_pairs: how many to spread the chunks over.
        paced: whether the rate is for us to find; a transport with a congestion control of its own gets a full window.
        window_bytes: most bytes in flight; None: twice the bandwidth-delay product.
        most_chunks: most chunks in flight; those beyond would only wait in front of the queue pairs. None: any number.
        mtu_bytes: packet size.
        rtt_hint: round trip as the control channel saw it, seconds.
        idle_timeout: seconds without anything new arriving after which the transfer fails.
        max_resends: how often the receiver may ask for everything, or the header, again.
        repairs: the repair chunks to send behind the payload, on UC.
    """

    tag: int
    reliable: bool = False
    queue_pairs: int = 1
    paced: bool = True
    window_bytes: int | None = None
    most_chunks: int | None = None
    mtu_bytes: int = 4096
    rtt_hint: float | None = None
    idle_timeout: float = 60.0
    max_resends: int = 16
    repairs: RepairPlan | None = None
