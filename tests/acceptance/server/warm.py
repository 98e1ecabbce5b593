"""Through Spark Connect, as in the other acceptance tests."""

from ..pipelines.warm import PIPELINE

__all__ = ["PIPELINE"]
