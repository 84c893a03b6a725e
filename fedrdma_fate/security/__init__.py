"""Who may talk to whom. Mutual TLS, identities and sealing of chunks belong here; so far there is `security: off`."""
