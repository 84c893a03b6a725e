"""What a chunk of `fedrdma-x` costs the processors of both ends, apart from the network and its device."""
