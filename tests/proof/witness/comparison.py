"""The records of a topic, as another reader has them, held against the sinks and the dead letters.

Nothing here is the product's: plain Python says what becomes of them, and the tables are
read in one snapshot as PostgreSQL prints them. A row is compared as the text that COPY writes; of each that has a
position only the position and a hash of the text are kept, 16 bytes.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field

import numpy as np
import psycopg
from psycopg import sql
from xxhash import xxh3_64_intdigest

from ratchet import Accumulate, Append, Pipeline, Upsert
from ratchet.spec.pipeline import DEAD_LETTERS

from .console import Record, read
from .plain import Plain, plain_of

FIRST = 20
"""How many of each kind of difference are named."""
_PARTITION, _N = 56, 16
"""A position in 64 bits: the partition above bit 56, the offset, the number among the rows of a record below bit 16."""
_VOIDED = "voided"
"""Instead of a code hash: an operator has given it up, and nobody has had it replayed."""
_SPECIAL = str.maketrans({c: f"\\{e}" for c, e in zip("\\\b\f\n\r\t\v", "\\bfnrtv", strict=True)})


@dataclass
class Found:
    """Differences of one kind: how many, and the first of them in words."""

    total: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, count: int, said: Iterable[str]) -> None:
        self.total += count
        self.first += [line for line, _ in zip(said, range(FIRST - len(self.first)), strict=False)]


@dataclass
class Testimony:
    """What the witness says of a pipeline; `rows` are those found, by sink and in the dead letters.

    `lost`: should be there and is not. `doubled`: is there more than once. `foreign`: should not be there, as it was
    aborted, filtered, given up, or never produced. `different`: is there once, with other content.
    """

    # By its name pytest takes it for a test.
    __test__ = False

    pipeline: str
    records: int = 0
    """Committed records in the topic, but for those of voided transactions."""
    voided: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    lost: Found = field(default_factory=Found)
    doubled: Found = field(default_factory=Found)
    foreign: Found = field(default_factory=Found)
    different: Found = field(default_factory=Found)
    seconds: float = 0.0

    @property
    def is_exact(self) -> bool:
        """Whether nothing is wrong."""
        return not any(found.total for found in (self.lost, self.doubled, self.foreign, self.different))

    def faults(self) -> list[str]:
        """What is wrong, the first of each kind in words."""
        kinds = {"lost": self.lost, "doubled": self.doubled, "foreign": self.foreign, "different": self.different}
        return [f"{kind}: {said}" for kind, found in kinds.items() for said in found.first]

    def to_json(self) -> dict:
        """All of it, for JSON."""
        return {**asdict(self), "is_exact": self.is_exact}


def examine(
    spec: Pipeline,
    kafka: Mapping[str, str],
    ledger_url: str,
    idle_seconds: float = 10,
    plains: Mapping[str, Plain] | None = None,
) -> Testimony:
    """Hold a pipeline's whole topic, as Kafka's console consumer has it, against its sinks and dead letters.

    Raises Unread if it could not be read.
    """
    return compare(spec, read(kafka, spec.source.name, idle_seconds), ledger_url, plains=plains)


def compare(
    spec: Pipeline,
    records: Iterable[Record],
    ledger_url: str,
    plain: Plain | None = None,
    plains: Mapping[str, Plain] | None = None,
) -> Testimony:
    """Hold the committed records of a topic against the sinks and dead letters of a pipeline that is at rest.

    `plain` says in Python what becomes of a record; by default it is what stands beside the transform. Where the spec
    has changed, `plains` says it for each code hash, `spec` has every column that there was, and which code is whose
    the ledger says. Records of voided transactions should be nowhere. Records must be in order within each partition.
    """
    testimony, plain, began = Testimony(spec.name), plain or plain_of(spec), time.monotonic()
    plains = defaultdict(lambda: plain, plains or {})
    wanted = {name: _Rows() for name in [DEAD_LETTERS, *(s.name for s in spec.sinks if isinstance(s, Append))]}
    folds = {s.name: _Sums(s) if isinstance(s, Accumulate) else _Last(s) for s in spec.sinks if s.name not in wanted}
    columns = {s.name: [c.name for c in s.fields] for s in spec.sinks if isinstance(s, Append)}
    by_whom = _Codes(ledger_url, spec)
    topic = text(spec.source.name)
    for partition, offset, key, value in records:
        code = by_whom.of(partition, offset)
        if code == _VOIDED:
            testimony.voided += 1
            continue
        testimony.records += 1
        for name, rows in plains[code](key, value).items():
            if name == DEAD_LETTERS:
                wanted[name].add(partition, offset, 0, f"{text(key)}\t{text(value)}")
            elif name in folds:
                for row in rows:
                    folds[name].add(partition, offset, row)
            else:
                for row in rows:
                    said = "\t".join([text(row.get(c)) for c in columns[name]])
                    wanted[name].add(partition, offset, row.get("_n", 0), f"{said}\t{topic}")
    with psycopg.connect(ledger_url) as conn:
        # What is visible of one transaction is visible of all that it wrote.
        conn.execute("set transaction isolation level repeatable read, read only")
        for name, rows in wanted.items():
            query = _letters(spec) if name == DEAD_LETTERS else _appended(spec.sink(name), columns[name])
            rows.hold_against(conn, query, name, testimony)
        for name, fold in folds.items():
            fold.hold_against(conn, name, testimony)
    testimony.seconds = round(time.monotonic() - began, 1)
    return testimony


def text(value: object) -> str:
    """A value as COPY writes it: text, bytes, an integer or null."""
    if value is None:
        return "\\N"
    if isinstance(value, bytes):
        return "\\\\x" + value.hex()
    return value.translate(_SPECIAL) if isinstance(value, str) else str(value)


class _Rows:
    """Rows that have a position: which should be there, and whether they are."""

    def __init__(self) -> None:
        self._places, self._hashes = array("q"), array("Q")

    def add(self, partition: int, offset: int, n: int, said: str) -> None:
        self._places.append(partition << _PARTITION | offset << _N | n)
        self._hashes.append(xxh3_64_intdigest(said.encode()))

    def hold_against(self, conn: psycopg.Connection, query: sql.Composable, name: str, testimony: Testimony) -> None:
        """`query` gives partition, offset, n and then what `add` was given."""
        found = _Rows()
        for line in _copied(conn, query):
            partition, offset, n, said = line.split(b"\t", 3)
            found._places.append(int(partition) << _PARTITION | int(offset) << _N | int(n))
            found._hashes.append(xxh3_64_intdigest(said))
        testimony.rows[name] = len(found._places)
        places, hashes = self._sorted()
        their_places, their_hashes = found._sorted()
        if len(places) == len(their_places) and (places == their_places).all() and (hashes == their_hashes).all():
            return
        unique, times = np.unique(their_places, return_counts=True)
        lost = places[~np.isin(places, unique)]
        foreign = unique[~np.isin(unique, places)]
        doubled = unique[times > 1]
        # Of each row that is there and should be, what it should say.
        known = np.isin(their_places, places)
        should = hashes[np.searchsorted(places, their_places[known])] if len(places) else hashes
        different = np.unique(their_places[known][their_hashes[known] != should])
        content = _content(
            conn, query, set(np.concatenate([x[:FIRST] for x in (foreign, doubled, different)]).tolist())
        )
        for what, which in (("lost", lost), ("foreign", foreign), ("doubled", doubled), ("different", different)):
            count = int((times[times > 1] - 1).sum()) if what == "doubled" else len(which)
            said = (f"{name}: {_place(p)}{content.get(p, '')}" for p in which[:FIRST].tolist())
            getattr(testimony, what).add(count, said)

    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """By place; several at one place by hash, so that equal multisets give equal arrays."""
        places, hashes = np.frombuffer(self._places, np.int64), np.frombuffer(self._hashes, np.uint64)
        order = np.lexsort((hashes, places))
        return places[order], hashes[order]


class _Sums:
    """An Accumulate, folded in plain Python."""

    def __init__(self, sink: Accumulate):
        self.sink, self._state = sink, {}
        self._key = [c.name for c in sink.columns_of("key")]
        self._parts = [(c.name, part) for part in (_add, min, max) for c in sink.columns_of(_NAMES[part])]

    def add(self, _partition: int, _offset: int, row: dict) -> None:
        key = tuple([row[c] for c in self._key])
        state = self._state.get(key)
        if state is None:
            state = self._state[key] = [None] * len(self._parts) + [0]
        for i, (column, part) in enumerate(self._parts):
            value, old = row.get(column), state[i]
            if value is not None:
                state[i] = value if old is None else part(old, value)
        state[-1] += 1

    def hold_against(self, conn: psycopg.Connection, name: str, testimony: Testimony) -> None:
        count = slice(None) if self.sink.count else slice(-1)
        wanted = {_line(key): _line(state[count]) for key, state in self._state.items()}
        _hold_keys(conn, self.sink, self._key, self.sink.measures, wanted, testimony)


class _Last:
    """An Upsert, folded in plain Python: the greatest order, then the later record of one partition."""

    def __init__(self, sink: Upsert):
        self.sink, self._state = sink, {}
        self._key, self._values = [c.name for c in sink.key_columns], [c.name for c in sink.fields]

    def add(self, partition: int, offset: int, row: dict) -> None:
        key = tuple([row[c] for c in self._key])
        order = row[self.sink.order] if self.sink.order else 0
        rank = (order is not None, order or 0)
        old = self._state.get(key)
        if old is not None and old[0] == rank and old[1] != partition:
            raise ValueError(f"{self.sink.name}: no record alone says which row of key {key} in two partitions is last")
        if old is None or rank >= old[0]:
            values = None if row.get("_deleted") else [row.get(c) for c in self._values]
            self._state[key] = rank, partition, offset, values

    def hold_against(self, conn: psycopg.Connection, name: str, testimony: Testimony) -> None:
        living = ((key, last) for key, last in self._state.items() if last[3] is not None)
        wanted = {_line(key): _line([*values, p, o]) for key, (_, p, o, values) in living}
        _hold_keys(conn, self.sink, self._key, [*self._values, "_partition", "_offset"], wanted, testimony)


def _add(a: int, b: int) -> int:
    return a + b


_NAMES = {_add: "sum", min: "min", max: "max"}


def _hold_keys(
    conn: psycopg.Connection,
    sink: Accumulate | Upsert,
    key: list[str],
    measures: list[str],
    wanted: dict[bytes, bytes],
    testimony: Testimony,
) -> None:
    """Compare the rows of a table by their key, {key: the other columns} as COPY writes them."""
    found: dict[bytes, list[bytes]] = {}
    for line in _copied(conn, _select([*key, *measures], sink.table)):
        parts = line.split(b"\t")
        found.setdefault(b"\t".join(parts[: len(key)]), []).append(b"\t".join(parts[len(key) :]))
    testimony.rows[sink.name] = sum(map(len, found.values()))

    def said(keys: Iterable[bytes]) -> Iterator[str]:
        for k in sorted(keys):
            there, should = (x.decode() if x else "nothing" for x in (b" and ".join(found.get(k, [])), wanted.get(k)))
            yield f"{sink.name}: {k.decode()}: {there}, not {should}".replace("\t", ", ")

    doubled = {k for k, rows in found.items() if len(rows) > 1}
    different = {k for k, rows in found.items() if k in wanted and any(row != wanted[k] for row in rows)}
    for kind, keys in (
        (testimony.lost, wanted.keys() - found.keys()),
        (testimony.foreign, found.keys() - wanted.keys()),
        (testimony.doubled, doubled),
        (testimony.different, different),
    ):
        kind.add(len(keys), said(keys))


# PostgreSQL.


class _Codes:
    """Whose code has made what is committed of a record, by what the ledger says of its range."""

    def __init__(self, ledger_url: str, spec: Pipeline):
        self._ranges: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
        query = (
            "select partition, from_offset, until_offset, "
            "(select case when state = 'VOIDED' then %s else code_hash end "
            "from ratchet.transactions t where (t.pipeline, t.txid) = (r.pipeline, r.txid) "
            "and (state = 'COMMITTED' or (state = 'VOIDED' and revision = 0)) order by revision desc limit 1) "
            "from ratchet.ranges r where pipeline = %s and from_offset < until_offset order by from_offset"
        )
        with psycopg.connect(ledger_url) as conn:
            for partition, *said in conn.execute(query, [_VOIDED, spec.name]):
                self._ranges[partition].append((*said,))

    def of(self, partition: int, offset: int) -> str:
        """A code hash, _VOIDED, or "" where it is in no range or nothing of that is decided."""
        ranges = self._ranges[partition]
        place = bisect_right(ranges, offset, key=lambda one: one[0]) - 1
        if place < 0 or offset >= ranges[place][1]:
            return ""
        return ranges[place][2] or ""


def _appended(sink: Append, columns: list[str]) -> sql.Composable:
    return _select(["_partition", "_offset", "_n", *columns, "_topic"], sink.table)


def _letters(spec: Pipeline) -> sql.Composable:
    query = 'select partition, "offset", 0, key, value from ratchet.dead_letters where pipeline = {}'
    return sql.SQL(query).format(sql.Literal(spec.name))


def _select(columns: Iterable[str], table: tuple[str, str]) -> sql.Composable:
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    return sql.SQL("select {} from {}").format(names, sql.Identifier(*table))


def _copied(conn: psycopg.Connection, query: sql.Composable) -> Iterator[bytes]:
    """The rows of a query as COPY writes them, streamed."""
    with conn.cursor() as cursor, cursor.copy(sql.SQL("copy ({}) to stdout").format(query)) as copy:
        for row in copy:
            yield bytes(row).rstrip(b"\n")


def _content(conn: psycopg.Connection, query: sql.Composable, places: set[int]) -> dict[int, str]:
    """{place: what is found there} of a few."""
    found: dict[int, str] = {}
    for line in _copied(conn, query) if places else ():
        partition, offset, n, said = line.split(b"\t", 3)
        place = int(partition) << _PARTITION | int(offset) << _N | int(n)
        if place in places:
            found[place] = f"{found.get(place, '')}: {said.decode()[:200]}".replace("\t", ", ")
    return found


def _place(place: int) -> str:
    partition, rest = divmod(place, 1 << _PARTITION)
    return f"partition {partition}, offset {rest >> _N}, row {rest & (1 << _N) - 1}"


def _line(values: Iterable[object]) -> bytes:
    return "\t".join(map(text, values)).encode()
