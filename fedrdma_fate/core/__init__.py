"""The protocol as state machines. No I/O, no threads, no clock: time is an argument, actions are the answer."""
