"""What a destination is called by tools that follow data: a namespace and a name, as OpenLineage gives them.

https://openlineage.io/docs/spec/naming says which, so that other tools' events are of the same places. A name is made
of addresses alone: nothing of a login is in it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dataset:
    """A place that holds data: where it is, and what it is called there."""

    namespace: str
    name: str

    @classmethod
    def of_table(cls, host: str, port: int | str, database: str, place: tuple[str, str]) -> Dataset:
        """A table in PostgreSQL, by its (schema, name)."""
        return cls(f"postgres://{host}:{port}", ".".join((database, *place)))

    @classmethod
    def of_topic(cls, servers: str, topic: str) -> Dataset:
        """A topic in Kafka, by the first of its bootstrap servers."""
        first = servers.split(",")[0].rpartition("://")[2].strip()
        return cls(f"kafka://{first if ':' in first else f'{first}:9092'}", topic)

    @classmethod
    def of_place(cls, place: str) -> Dataset:
        """A directory, by its path or as `file:///…`, or a place in an object store, as `s3://bucket/key`."""
        path = place.removeprefix("file://").removeprefix("file:")
        scheme, separated, rest = path.partition("://")
        if not separated:
            return cls("file", path.rstrip("/"))
        authority, _, key = rest.partition("/")
        scheme = "s3" if scheme in ("s3a", "s3n") else scheme
        return cls(f"{scheme}://{authority}", key.rstrip("/"))
