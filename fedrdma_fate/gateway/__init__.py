"""The daemon of a site: its FATE tasks on one side, other gateways on the other, memory in between."""
