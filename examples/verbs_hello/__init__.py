"""RDMA by hand: the high-level layer over pyverbs, used alone."""
