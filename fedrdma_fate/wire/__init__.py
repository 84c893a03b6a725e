"""What travels: the chunk header, the control frames and the error codes. Knows nothing of the layers above."""
