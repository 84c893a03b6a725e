"""BBR version 3, for comparison with the controller of `fedrdma-x`: draft-ietf-ccwg-bbr-06.

Sections are the draft's. Packets are chunks here, and acknowledgements are reports, which come every 2 ms. Not here:
undoing what a loss did that turns out to be none (5.5.11), a retransmission time-out's window (the sender has its own),
and restarting from idle (5.4): a transfer is not idle. What is ours: a path that is known begins in ProbeBW.
"""
