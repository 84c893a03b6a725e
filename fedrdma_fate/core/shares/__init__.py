"""How a receiver shares its link among all who send to it. No I/O; time is an argument."""
