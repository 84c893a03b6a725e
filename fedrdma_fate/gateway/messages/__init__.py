"""Messages that are here, and the sessions that they belong to."""
