"""fedrdma-fate: a FATE federation backend that moves model weights by chunked RDMA, TCP or shared memory."""

__version__ = "0.1.0"
