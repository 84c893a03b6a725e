"""The queues of OSX, as FATE's federation for OSX uses them."""
