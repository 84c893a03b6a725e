"""`fedrdma bench unifl`: what UniFL's evaluation asks, asked of this project."""
