"""Mode `fedrdma-x` as state machines: a paced window of chunks, and only what was lost sent again."""
