"""Rounds of a federation by one protocol: a server, silos, a model down to each and up from each."""
