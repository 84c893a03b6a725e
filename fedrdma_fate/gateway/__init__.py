"""The daemon of a site: tasks on one side, other gateways on the other, memory in between; and the client of tasks."""
