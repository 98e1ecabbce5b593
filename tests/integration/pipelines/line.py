"""The line that the tests stage for by themselves."""

from tests.integration.staging import SPEC as PIPELINE

__all__ = ["PIPELINE"]
