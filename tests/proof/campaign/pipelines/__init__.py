"""Pipelines for the campaign, of four shapes; each has a topic of its name."""
