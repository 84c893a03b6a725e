"""What happened: a trace as JSON lines, Prometheus metrics, structured logs. Knows nothing of policy."""
