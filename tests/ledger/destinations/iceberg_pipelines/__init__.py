"""The spec of a line with a destination, for the command."""
