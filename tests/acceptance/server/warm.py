"""Through Spark Connect, as in the other acceptance tests."""

from tests.acceptance.pipelines.warm import PIPELINE

__all__ = ["PIPELINE"]
