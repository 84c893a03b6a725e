"""A virtual clock, a virtual lossy link and the two ends of a transfer on it: a WAN in milliseconds of test."""
