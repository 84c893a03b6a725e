"""Ways to move bytes between two gateways, all behind `ports.Transport`. Know nothing of messages or FATE."""
