"""What the commands are made of. Standard library only where it runs before anything is installed."""
