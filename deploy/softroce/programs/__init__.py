"""Programs for the two hosts of a testbed."""
