"""How a process of this site talks to its gateway: a unix socket for requests, shared memory for payloads."""
