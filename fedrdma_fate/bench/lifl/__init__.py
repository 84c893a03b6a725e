"""`fedrdma bench lifl`: the figures of the LIFL paper that are about planning, in virtual time with measured costs."""
