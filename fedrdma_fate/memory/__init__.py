"""Shared-memory regions, slot pools, leases and spill. Knows nothing of the network."""
