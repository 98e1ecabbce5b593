"""The reference model: what every reader must see at every moment, and which histories are possible."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import psycopg
from psycopg import sql
from psycopg.rows import namedtuple_row

from ratchet import Append
from ratchet.ledger.states import State
from ratchet.spec.parts import DeclaredSink
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.proof.reference import PER_TOPIC, Fold, shown
from tests.proof.simulate import sending
from tests.proof.simulate.code import OF_CODE, make_of
from tests.proof.simulate.logs import Names, of_line
from tests.proof.simulate.seen import NOTHING, Seen
from tests.proof.simulate.shapes import NAME, PASSES

MOVES = {
    State.OPEN: {State.PREPARED, State.ABORTED, State.VOIDED},
    State.PREPARED: {State.COMMITTED, State.ABORTED, State.VOIDED},
    State.ABORTED: {State.OPEN, State.VOIDED},
    State.VOIDED: {State.COMMITTED},
    State.COMMITTED: set(),
}
"""Written down here once more, so that a change of the product's table is noticed."""
HARMLESS = (
    "the code is",
    "gate ",
    "a person said so",
    "was not prepared by its deadline",
    "superseded by",
    "the transform refuses",
    "is older than the spec's keep_deltas",
    "is older than an Append keeps its rows",
    "is applied already",
)
"""Why a transaction may be aborted here; every other reason is a fault of the protocol."""
_WHAT = r"^line: (revision \d+ of )?transaction \d+"
_TRY = rf"{_WHAT}, slice \d+, try \d+"
TOLD = (
    rf"{_WHAT} was adopted by run r\d+(#\d+)? meanwhile$",
    rf"{_WHAT}: this run's claim has ended; clear the run$",
    rf"{_WHAT}, slice \d+: this run's claim has ended; clear the run$",
    rf"{_WHAT}, slice \d+: run r\d+ holds the transaction now$",
    rf"{_TRY}: try \d+ has the slice now$",
    rf"{_TRY} of epoch \d+: the transaction is \w+ in epoch \d+$",
    rf"{_TRY}: the slice has voted in try \d+$",
    rf"{_TRY}: the table is gone, so its epoch is over; nothing was written$",
    rf"{_WHAT}, slice \d+: the code is \w+, the epoch began with \w+; nothing was changed; the next run begins a new",
    rf"{_WHAT}: sink '\w+': .+, since a migration; nothing was changed$",
    r"^sink '\w+': .+; nothing was begun; `ratchet migrate` makes what is missing",
    rf"{_WHAT} was prepared with code \w+, this process has \w+; nothing was changed; the next run begins a new epoch",
    r"^(revision \d+ of )?transaction \d+, slice \d+: voted no: the transform refuses$",
    r"^line: claim \d+ of (revision \d+ of )?transaction \d+ is not held any more$",
    rf"{_WHAT}: run r\d+ (has it now, in epoch \d+, which no gate has seen|works on it now, in epoch \d+)$",
    rf"{_WHAT} is OPEN: a slice has not voted; clear the whole run$",
    rf"{_WHAT} is aborted: .+; (the next run tries it again in a new epoch|the old result stays)$",
    rf"{_WHAT} is aborted: (gate .+(; the limit is 0.9| is false)|epoch \d+ was not prepared by its deadline, .+)$",
    rf"{_WHAT} is \w+, which is final; there is nothing to try again or to abort(?:; `ratchet replay .*)?$",
    rf"{_WHAT} is \w+, and run r\d+ works on it$",
    rf"{_WHAT} is \w+; it cannot become \w+(?:; `ratchet replay .*)?$",
    r"^line is halted at transaction \d+ since .+, after \d+ failures: ",
    rf"{_WHAT}: only some tasks of a committed run were cleared; clear the whole run to revise it; ",
    rf"{_WHAT} is older than the spec's keep_deltas: ",
    rf"{_WHAT} is older than an Append keeps its rows: ",
    rf"{_WHAT}: revision \d+ is applied already; the newer result stays$",
    r"^line: no transaction from \d+ to \d+ has dead letters; there is nothing to release$",
    r"^line: transaction \d+: left out: (is older than|\w+ was written with columns) .+$",
    r"^line: the head is \d+, so the line cannot stop behind transaction \d+ any more; nothing was changed; ",
    r"^line is not paused; nothing was changed; ",
    rf"{_WHAT} is not committed yet: the head is \d+; there is nothing to revise$",
    r"^line: of transactions \d+ to \d+ no revision waits$",
)
"""What a step may be told instead of being done; whoever is told anything else has come upon a fault."""
_OF_LEDGER = {
    "line": "select txid, last_txid, paused_behind, topics from ratchet.pipelines join ratchet.heads using (pipeline) "
    "where pipeline = {}",
    "topics": "select topic, joined_txid, source from ratchet.topics where pipeline = {} order by source, number",
    "transactions": "select * from ratchet.transactions where pipeline = {}",
    "ranges": "select txid, partition, from_offset, until_offset from ratchet.ranges where txid > 0 and pipeline = {}",
    "starts": "select partition, until_offset from ratchet.ranges where txid = 0 and pipeline = {}",
    "slices": "select txid, epoch, ranges, try_number, sinks from ratchet.slices where pipeline = {} "
    "order by txid, epoch, slice",
    "replays": "select txid from ratchet.replays where pipeline = {} and given_up is null",
    "expired": "select name, max(until_txid) from ratchet.expired where pipeline = {} group by name",
    "clock": "select schedule.clock_timestamp() where {} is not null",
}
_DEAD_LETTERS = 'select topic, partition, "offset", txid, error from ratchet.dead_letters where pipeline = {}'


Sinks = dict[str, DeclaredSink]
"""{name: a sink}."""
Records = Callable[[Names, list[tuple[int, int, int]]], list[tuple[int, int]]]
"""The (partition, offset) of every record in ranges of (partition, from, until) of a line with these topics."""


class Watch:
    """A reader who looks again and again, in one snapshot each time, and remembers what was before."""

    def __init__(self, url: str):
        # A migration changes what a statement gives that was prepared before.
        self._conn = psycopg.connect(url, row_factory=namedtuple_row, prepare_threshold=None)
        self._conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        self._conn.read_only = True
        queries = {**_OF_LEDGER, DEAD_LETTERS: _DEAD_LETTERS}
        self._of_ledger = {name: sql.SQL(query).format(NAME) for name, query in queries.items()}
        self.last = NOTHING

    def forget(self, sinks: Sinks, records: Records) -> None:
        """A new schedule begins, of a pipeline with these sinks; `records` says which of given ranges there are."""
        self.last, self._records, self._backup = NOTHING, records, NOTHING
        self._decided = 0
        self.show(sinks)

    def go_back(self, seen: Seen) -> None:
        """The ledger was restored to what was seen then."""
        self.last, self._backup = seen, seen

    def show(self, sinks: Sinks) -> None:
        """From here on there are these sinks, with all the columns that each of them will ever have had."""
        self._sinks = sinks
        self._is_sent = any(sink.destinations for sink in sinks.values())
        self._queries = {**self._of_ledger, **{name: _select(name) for name in sinks}}
        self._folded: tuple[object, dict[str, list[tuple]]] | None = None

    def look(self) -> Seen:
        """Take a snapshot; AssertionError when it cannot be, or cannot follow what was seen before."""
        seen = self._snapshot()
        self._is_prefix(seen)
        self._is_held(seen)
        self._is_of_topics(seen)
        self._is_counted(seen)
        self._is_fold(seen)
        self._is_expired(seen)
        self._follows(seen)
        self.last = seen
        return seen

    def _snapshot(self) -> Seen:
        with self._conn.transaction(), self._conn.pipeline():
            sent = self._conn.execute(sending.FAULTS) if self._is_sent else None
            place = self._conn.execute(sending.PLACE) if self._is_sent else None
            asked = {name: self._conn.execute(query) for name, query in self._queries.items()}
            found = (asked.pop(name).fetchall() for name in _OF_LEDGER)
            line, topics, transactions, ranges, starts, slices, replays, expired, clock = found
            contents = {DEAD_LETTERS: sorted(map(tuple, asked.pop(DEAD_LETTERS)), key=repr)}
            faults = [said for (said,) in sent.fetchall()] if sent else []
            contents |= {name: _contents(cursor, shown(self._sinks[name])) for name, cursor in asked.items()}
        assert not faults, f"the destination: {faults}"
        decided, reached = (place and place.fetchone()) or (0, 0)
        # A commit, of perhaps several transactions, waits until it has the one before.
        assert decided <= self._decided or reached >= self._decided, f"{decided} are decided, and it has {reached}"
        self._decided = decided
        cuts: dict[tuple[int, int], list] = defaultdict(list)
        votes, tries = {}, {}
        for row in slices:
            of_slice = row.txid, row.epoch, len(cuts[row.txid, row.epoch])
            tries[of_slice] = row.try_number
            if row.sinks is not None:
                votes[of_slice] = (row.try_number, row.sinks)
            cuts[row.txid, row.epoch].append(row.ranges)
        head, last_txid, paused_behind, stored = line[0] if line else (0, 0, None, [])
        assert {row.source for row in topics} <= {1}, f"a source has begun, and no log was cut or made again: {topics}"
        names = tuple(row.topic for row in topics)
        assert names == tuple(each["topic"] for each in stored), f"the line is of {stored}, its source of {names}"
        of: dict[int, list] = defaultdict(list)
        for row in ranges:
            of[row.txid].append((row.partition, row.from_offset, row.until_offset))
        return Seen(
            head,
            last_txid,
            paused_behind,
            names,
            frozenset(row.topic for row in topics if row.joined_txid is not None),
            frozenset(each["topic"] for each in stored if each.get("left")),
            {(row.txid, row.revision): row for row in transactions},
            dict(of),
            dict(starts),
            votes,
            tries,
            dict(cuts),
            {row.txid for row in replays},
            dict(expired),
            clock[0][0],
            contents,
        )

    def _is_prefix(self, seen: Seen) -> None:
        """I4: what is committed is a prefix of the line, and each member has passed the gate in its epoch."""
        for (txid, revision), row in seen.transactions.items():
            if revision == 0:
                is_final = row.state in (State.COMMITTED, State.VOIDED)
                assert is_final or txid > seen.head, f"the head is {seen.head}, and {txid} is {row.state}"
                assert row.state != State.COMMITTED or txid <= seen.head, (
                    f"{txid} is committed, the head is {seen.head}"
                )
            else:
                assert txid <= seen.head, f"a revision of {txid} is begun, the head is {seen.head}"
            if row.applied is not None:
                assert row.state == State.COMMITTED, f"{txid} is applied and {row.state}"
                self._is_passed(seen, row)
            # A revision that is given up has the reason of its last failure.
            if row.state == State.ABORTED and not (revision and row.halted_at):
                is_harmless = any(said in row.reason for said in HARMLESS) or self._has_lost_rows(seen, row)
                assert is_harmless, f"{txid} was aborted: {row.reason}"
        assert {t for t, r in seen.transactions if r == 0} == set(range(1, seen.last_txid + 1))

    def _is_held(self, seen: Seen) -> None:
        """Nothing beyond a pause is committed; and while it stays, nothing is begun there, or gets another run."""
        behind = seen.paused_behind
        if behind is None:
            return
        assert seen.head <= behind, f"the line is paused behind {behind}, and the head is {seen.head}"
        before = self.last
        if before.paused_behind != behind:
            assert seen.last_txid == before.last_txid, "what is paused is begun"
            return
        assert seen.last_txid <= max(before.last_txid, behind), f"{seen.last_txid} is begun beyond the pause, {behind}"
        for (txid, revision), row in before.transactions.items():
            is_adopted = seen.transactions[txid, revision].run_id != row.run_id
            assert revision or txid <= behind or not is_adopted, f"{txid} is adopted beyond the pause, {behind}"

    def _is_of_topics(self, seen: Seen) -> None:
        """I2: topics keep their numbers, plans go on where they had ended, and of what is left nothing is planned."""
        names = self.last.names
        assert seen.names[: len(names)] == names, f"the line is of {seen.names}, and was of {names}"
        assert seen.reached.keys() == seen.starts.keys()
        for txid in seen.ranges.keys() - self.last.ranges.keys():
            taken = {seen.names[partition // PER_TOPIC] for partition, _, _ in seen.ranges[txid]}
            assert not taken & seen.left, f"{txid} takes records of {taken}, of which {seen.left} are left"

    def _has_lost_rows(self, seen: Seen, row: tuple) -> bool:
        """Whether a try that a backup has could vote for rows that are not in it."""
        tried = [of for of, number in self._backup.tries.items() if number and seen.tries.get(of) == number]
        return "its rows are gone" in row.reason and (row.txid, row.epoch) in {of[:2] for of in tried}

    def _is_counted(self, seen: Seen) -> None:
        """The last vote of an epoch prepares its transaction; a cut is made once, and tiles the plan."""
        for row in seen.transactions.values():
            cut = seen.cuts[row.txid, row.epoch]
            voted = [number for number in range(len(cut)) if (row.txid, row.epoch, number) in seen.votes]
            assert row.state != State.OPEN or len(voted) < len(cut), f"{row.txid} is OPEN, and every slice has voted"
            is_prepared = row.state in (State.PREPARED, State.COMMITTED) and row.prepared_at is not None
            assert not is_prepared or len(voted) == len(cut), f"{row.txid} is {row.state} by the votes {voted} of {cut}"
        first: dict[int, list] = {}
        for (txid, epoch), cut in sorted(seen.cuts.items()):
            if self._is_release(seen, txid, epoch):
                # Slices without dead letters are left out.
                assert all(part in first[txid] for part in cut), f"{txid} was cut anew in epoch {epoch}: {cut}"
                continue
            assert cut == first.setdefault(txid, cut), f"{txid} was cut anew in epoch {epoch}: {cut}"
        for txid, cut in first.items():
            planned = [(p, o) for p, start, until in seen.ranges[txid] for o in range(start, until)]
            taken = [(p, o) for part in cut for p, start, until in part for o in range(start, until)]
            assert sorted(planned) == sorted(taken), f"the plan of {txid} is {seen.ranges[txid]}, its cut is {cut}"

    def _is_release(self, seen: Seen, txid: int, epoch: int) -> bool:
        """Whether an epoch is of a release: those of a revision follow one another."""
        mine = [row for (of, _), row in seen.transactions.items() if of == txid and row.epoch >= epoch]
        return min(mine, key=lambda row: row.epoch).releases is not None

    def _is_fold(self, seen: Seen) -> None:
        """I1, I3, I5: every sink is the fold of what is committed, of its newest revision, and of nothing else."""
        applied = [
            (txid, row.code_hash, row.releases)
            for (txid, _), row in sorted(seen.transactions.items())
            if row.applied is not None
        ]
        of = applied, seen.expired
        if self._folded is None or self._folded[0] != of:
            self._folded = of, self._fold(seen, applied)
        wanted = self._folded[1]
        for name, rows in seen.contents.items():
            assert rows == wanted[name], f"{name} holds {rows}, of what is committed comes {wanted[name]}"

    def _fold(self, seen: Seen, applied: list[tuple[int, str, str | None]]) -> dict[str, list[tuple]]:
        fold = Fold(seen.names)
        # A revision replaces nothing in a sink that its spec has no more.
        for txid, code, releases in applied:
            spec, version = OF_CODE[code]
            make = of_line(make_of(spec, version), seen.names)
            if releases is None:
                fold.put(spec, txid, self._records(seen.names, seen.ranges[txid]), make)
            else:
                fold.release(spec, txid, make)
        for sink, until in seen.expired.items():
            fold.expire(sink, until)
        return fold.contents(self._sinks.values())

    def _is_passed(self, seen: Seen, row: tuple) -> None:
        """Every gate of the spec by which a transaction was prepared has been asked, and would say yes."""
        spec, version = OF_CODE[row.code_hash]
        asked = {gate.title for gate in spec.gates}
        assert (set(row.verdict) if row.verdict else set()) == asked, f"{row.txid} was committed with {row.verdict}"
        # What a release has taken is not known any more.
        if row in self.last.transactions.values() or not asked or row.releases is not None:
            return
        make = of_line(make_of(spec, version), seen.names)
        at = self._records(seen.names, seen.ranges[row.txid])
        made: dict[str, list[dict]] = defaultdict(list)
        for place in at:
            for sink, rows in make(*place).items():
                made[sink] += rows
        for gate in asked:
            assert PASSES[gate](made, len(at)), f"{row.txid} was committed, and {gate} is not so"

    def _is_expired(self, seen: Seen) -> None:
        """What a sink keeps for some time goes when that is over, from the first transaction on, and never before."""
        before = self.last.expired
        keep = {sink.name: sink.keep for sink in self._sinks.values() if isinstance(sink, Append)}
        for sink, until in seen.expired.items():
            assert until >= before.get(sink, 0), f"rows of {sink} had expired up to {before[sink]}, and have to {until}"
            for txid in range(before.get(sink, 0) + 1, until + 1):
                row = seen.transactions[txid, 0]
                is_over = row.state in (State.COMMITTED, State.VOIDED) and txid <= seen.head
                assert is_over, f"rows of {sink} have expired up to {until}, and {txid} is {row.state}"
                age = seen.clock - (row.committed_at or row.opened_at)
                assert age >= keep[sink], f"rows of {sink} have expired up to {until}, and {txid} is {age} old"
        expired = max(before.values(), default=0)
        for (txid, revision), row in seen.transactions.items():
            old = self.last.transactions.get((txid, revision))
            is_new = row.applied is not None and old is not None and old.applied is None
            assert not (is_new and txid <= expired), f"{txid} was revised, and its rows had expired"

    def _follows(self, seen: Seen) -> None:
        """Nothing goes back: states move as they may, epochs, claims and the head grow, plans and votes stay."""
        before = self.last
        assert seen.head >= before.head and seen.last_txid >= before.last_txid
        for txid, revision in seen.transactions.keys() - before.transactions.keys():
            others = [of for of in before.revisions_going_on() if of[0] != txid]
            assert not (revision and others), f"a revision of {txid} is begun beside {others}"
        for partition, at in before.starts.items():
            assert seen.starts.get(partition) == at, f"partition {partition} began at {at}, now {seen.starts}"
        for txid, plan in before.ranges.items():
            assert seen.ranges.get(txid) == plan, f"the plan of {txid} was {plan}, is {seen.ranges.get(txid)}"
        for of, vote in before.votes.items():
            assert seen.votes.get(of) == vote, (
                f"the vote of (txid, epoch, slice) {of} was {vote}, is {seen.votes.get(of)}"
            )
        for txid, epoch, number in seen.votes.keys() - before.votes.keys():
            epochs = {row.epoch for at in (before, seen) for (t, _), row in at.transactions.items() if t == txid}
            assert epoch in epochs, f"slice {number} of {txid} has voted in epoch {epoch}, which is over"
        open_ = {(txid, row.epoch) for (txid, _), row in seen.transactions.items() if row.state == State.OPEN}
        for (txid, epoch, number), tried in seen.tries.items():
            old = before.tries.get((txid, epoch, number), 0)
            is_possible = (txid, epoch) in open_ or (txid, epoch, number) in seen.votes
            assert tried == old or (tried > old and is_possible), (
                f"slice {number} of {txid}, epoch {epoch}, was at try {old} and is at {tried}"
            )
        for of, old in before.transactions.items():
            new = seen.transactions[of]
            assert (new.epoch, new.claim) >= (old.epoch, old.claim), f"{of} went back to epoch {new.epoch}"
            is_way = old.state == new.state or State(new.state) in _reachable(State(old.state))
            assert is_way, f"{of} went from {old.state} to {new.state}"
            if old.applied is not None:
                assert new.applied == old.applied, f"{of} was applied twice"


def _reachable(state: State) -> set[State]:
    found: set[State] = set()
    left = [state]
    while left:
        for to in MOVES[left.pop()] - found:
            found.add(to)
            left.append(to)
    return found


def _contents(cursor: psycopg.Cursor[tuple], columns: list[str]) -> list[tuple]:
    """All rows, with these columns; one that is not there yet is null."""
    # In a pipeline there is no description before there are rows.
    rows = cursor.fetchall()
    place = {column.name: at for at, column in enumerate(cursor.description)}
    at = [place.get(name) for name in columns]
    return sorted((tuple(None if i is None else row[i] for i in at) for row in rows), key=repr)


def _select(sink: str) -> sql.Composed:
    return sql.SQL("select * from {}").format(sql.Identifier(sink))
