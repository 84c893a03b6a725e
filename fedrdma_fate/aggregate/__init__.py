"""Adds updates where they lie: a worker beside the gateway, and what the gateway and it say to each other."""
