"""The spec of a line whose rows go to an object store, for the command."""
