"""FATE's aggregation where elements of updates may be missing, and where nothing is: docs/bounded-loss.md."""
