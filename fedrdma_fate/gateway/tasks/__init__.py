"""The site's own FATE tasks: their socket, their requests, what they push, and whether they are there."""
