"""What is right and wrong with a machine on which a gateway, or FATE with this backend, is to run."""
