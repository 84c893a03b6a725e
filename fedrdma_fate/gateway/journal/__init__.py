"""What a gateway writes down, so that the next one of its site goes on where it was killed."""
