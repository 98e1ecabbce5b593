"""Pipelines for faults; each has a topic of its name and a shape of its own."""
