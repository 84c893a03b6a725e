"""Chunks and datagrams over UDP sockets: what unreliable queue pairs do, for hosts that have no RDMA device."""
