"""Pumps core against transports; owns the threads and the real clock."""
