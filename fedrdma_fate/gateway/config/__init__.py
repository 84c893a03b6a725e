"""The configuration file of a gateway: what it may hold, how it is read, explained and edited."""
