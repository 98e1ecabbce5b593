"""Where the files of a lake are, as delta-rs is told it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ratchet.destinations.object_store import CONNECT_SECONDS, RETRIES, RETRY_SECONDS, SECONDS, ObjectStore

_LIMITS = {
    "timeout": f"{SECONDS}s",
    "connect_timeout": f"{CONNECT_SECONDS}s",
    "max_retries": f"{RETRIES}",
    "retry_timeout": f"{RETRY_SECONDS}s",
    "backoff_config.max_backoff": "5s",
}


@dataclass(frozen=True)
class Storage:
    """A directory, or a place in an object store, and the options by which delta-rs reaches it."""

    place: str
    options: dict[str, str] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, name: str, store: ObjectStore | None) -> Storage:
        """By the name of a destination."""
        if store is None:
            return cls(name)
        # Never from the environment: without it one of two writers wins by a conditional request.
        return cls(store.url, {**store.options, **_LIMITS, "AWS_S3_ALLOW_UNSAFE_RENAME": "false"})
