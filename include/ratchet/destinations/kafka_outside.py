"""A Kafka topic that is open for one pipeline: its mark, and rows and mark in one of Kafka's transactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

import psycopg
from psycopg import sql

from ratchet.destinations.content import Change, Content, Puts
from ratchet.destinations.kafka_marks import Kept, Marks, key_of
from ratchet.destinations.kafka_producer import ProducerFenced, TransactionalProducer
from ratchet.destinations.kafka_topic import KafkaTopic
from ratchet.destinations.port import Mark, Outside, Owner, Undecided, no_answer
from ratchet.destinations.record_values import JsonValues, RecordValues
from ratchet.destinations.rendered import of_keys, of_rows
from ratchet.destinations.topic_schema import record_of, schema_of, unfit_for_avro
from ratchet.errors import (
    BrokerUnreachable,
    DestinationRefused,
    DestinationUnreachable,
    IncompleteRead,
    LedgerUnreachable,
    NotGranted,
    RegistryUnreachable,
    SettingsError,
    UnknownTopic,
)
from ratchet.formats.registry import Registry
from ratchet.spec.columns import Column
from ratchet.spec.subscription import MARKS

_SILENT_SECONDS = 120
"""So long whoever sends may ask nothing of the ledger: longer than Kafka is waited for."""
_AS_TEXT = "set local extra_float_digits = 1; set local timezone = 'UTC'"
"""Settings of a session decide how many digits a float has."""
_LOOK_EVERY = 5_000
"""After so many rows it is heard what has failed."""


class TopicOutside(Outside):
    """The topic, at its brokers.

    A mark is sent in the same Kafka transaction as its rows, as the last of it. Whoever wants to send first makes a
    producer of the one transactional id, which decides what others have left and lets them send nothing more; only then
    the mark that it reads is the last one.
    """

    def __init__(
        self, declared: KafkaTopic, owner: Owner, properties: dict[str, str], marks: Marks, registry: Registry | None
    ):
        """`registry` is that of a topic which has Avro."""
        self._declared, self._owner, self._properties, self._marks = declared, owner, properties, marks
        self._registry = registry
        self._key = key_of(owner.pipeline, declared.name)
        self._where = marks.where
        self._producer: TransactionalProducer | None = None
        self._kept: Kept | None = None
        """What the producer has found, or sent last; nobody else can send while it is not fenced."""

    def mark(self) -> Mark | None:
        with self._told():
            try:
                kept = self._mine(self._marks.read(self._key))
            except Undecided:
                # Of a follower that is gone, unless it is another pipeline's.
                self._become_the_one()
                kept = self._kept
        return None if kept is None else kept.mark

    def look(self) -> Mark | None:
        with self._told():
            kept = self._read()
            if kept is None:
                self._topic()
        return None if kept is None else kept.mark

    def start(self, mark: Mark) -> None:
        with self._told():
            self._marks.make()
            if self._has_mark():
                return
            topic_id, partitions = self._topic()
            # What the registry does not take shows here, and not only when there are rows.
            self._values(self._owner.fields)
            producer = self._become_the_one()
            if self._kept is not None:
                return
            sink, address = self._owner.sink, self._declared.address
            of = topic_id, partitions, self._declared.format
            first = Kept(mark.step, mark.token, None, mark.step, sink, address, *of)
            try:
                producer.begin()
                producer.put(MARKS, first.written(), self._key)
                producer.commit()
            except ProducerFenced as error:
                raise DestinationUnreachable(f"{self._where}: another process starts it just now; try again") from error
            self._kept = first

    def apply(self, at: Mark, to: Mark, change: Change | Puts) -> bool:
        has_waited = self._take_turn(change)
        with self._told():
            if has_waited and not self._may_be_at(at):
                # Somebody has gone on, and may be about to send the next step: that must not be ended for nothing.
                return False
            producer = self._producer
            if producer is None or self._kept is None or self._kept.mark != at:
                producer = self._become_the_one()
            kept = self._kept
            if kept is None or kept.mark != at:
                return False
            if isinstance(change, Change) and change.replaces:
                self._see_that_none_are_there(change, kept, to)
            values = None
            if isinstance(change, Puts) or change.rows:
                # Before there is a transaction for which readers would wait.
                values = self._values(change.fields, keyed=isinstance(change, Puts))
            try:
                producer.begin()
                if values is not None:
                    self._send(producer, values, change, to)
                producer.flush()
                # Before the brokers are asked for a commit: what somebody has made since is not written to.
                self._see_that_it_is(kept)
                self._kept = replace(kept, step=to.step, token=to.token, txid=change.until)
                producer.put(MARKS, self._kept.written(), self._key)
                producer.commit()
            except ProducerFenced:
                self.let_go()
                return False
            except DestinationUnreachable:
                # A commit whose answer is lost must not be followed by an abort.
                self.let_go()
                raise
            except BaseException:
                # Else whoever reads the topic would wait until it is too old.
                producer.abort()
                self.let_go()
                raise
        return True

    def restart(self, at: Mark | None, to: Mark, content: Content | None) -> bool:
        """From here: with the topic as it is now, whatever it was. Anew only by keys, and where it has no record."""
        if content is not None and not content.key:
            raise DestinationRefused(
                f"{self._where}: what a topic has cannot be taken back, so it is not made anew; attach it --from-here, "
                "or name another topic"
            )
        if content is not None:
            self._take_turn(content)
        with self._told():
            self._marks.make()
            topic_id, partitions = self._topic()
            producer = self._producer_of_its_own()
            try:
                kept = self._mine(self._marks.read(self._key))
                if (None if kept is None else kept.mark) != at:
                    self.let_go()
                    return False
                sink, address = self._owner.sink, self._declared.address
                until = None if content is None else content.until
                of = topic_id, partitions, self._declared.format
                first = Kept(to.step, to.token, until, to.step, sink, address, *of)
                if content is not None and kept == first:
                    # Its answer was lost.
                    return True
                if content is not None and self._marks.has_records(self._declared.name):
                    raise DestinationRefused(
                        f"{self._where}: the topic has records, among which keys may be that have no row any more; "
                        "nothing was sent; make the topic anew, or name another one, or attach it --from-here"
                    )
                producer.begin()
                if content is not None:
                    self._send(producer, self._values(content.fields, keyed=True), content, to)
                    producer.flush()
                    self._see_that_it_is(first)
                producer.put(MARKS, first.written(), self._key)
                producer.commit()
            except (ProducerFenced, Undecided) as error:
                self.let_go()
                raise DestinationUnreachable(f"{self._where}: another process sends just now; try again") from error
            except DestinationUnreachable:
                self.let_go()
                raise
            except BaseException:
                producer.abort()
                self.let_go()
                raise
            self._kept = first
        return True

    def let_go(self) -> None:
        """Have no producer any more."""
        producer, self._producer, self._kept = self._producer, None, None
        if producer is not None:
            producer.close()

    def _values(self, fields: Sequence[Column], *, keyed: bool = False) -> RecordValues:
        """What makes the values of rows of these columns; a registry has their schema from now on."""
        if self._registry is None:
            return JsonValues(fields, keyed=keyed)
        # Most topics have no Avro.
        from ratchet.destinations.avro_values import AvroValues

        unfit = unfit_for_avro(fields)
        if unfit:
            raise DestinationRefused(f"{self._where}: {unfit}; nothing was sent; {self._without}")
        schema = schema_of(self._declared.record or record_of(self._declared.name), fields)
        try:
            number = self._registry.register(f"{self._declared.name}-value", schema)
        except RegistryUnreachable as error:
            raise no_answer(self._where, str(error)) from error
        except (SettingsError, NotGranted) as error:
            raise DestinationRefused(
                f"{self._where}: {error}; nothing was sent; the schema of these rows is {schema}; register it there, "
                f"or change what the subject takes; {self._without}"
            ) from error
        return AvroValues(fields, schema, number)

    def _send(self, producer: TransactionalProducer, values: RecordValues, content: Content, to: Mark) -> None:
        """Send each row; of a sink with keys a tombstone where a key has none."""
        if isinstance(content, Change):
            asked = of_rows(self._keyed(content), self._owner.pipeline, content.txid)
        else:
            asked = of_keys(content.key, self._owner.pipeline, to.step)
        content.conn.execute(_AS_TEXT)
        topic, send = self._declared.name, producer.send
        with closing(content.selected([*values.asked, *asked])) as rows:
            for number, (value, key, said) in enumerate(values.records(rows, self._refused), 1):
                send(topic, value, key, said)
                if number % _LOOK_EVERY == 0:
                    producer.look()

    def _refused(self, said: str, why: str) -> DestinationRefused:
        return DestinationRefused(
            f"{self._where}: the record of {said}: {why}; nothing was sent; {self._without}, and have the transform "
            "keep such rows out"
        )

    @property
    def _without(self) -> str:
        return f"`ratchet detach {self._owner.pipeline} {self._declared.address}` lets the line go on without it"

    def _keyed(self, change: Change) -> Column | None:
        keyed = self._declared.keyed(change.fields)
        if keyed is None and self._declared.key is not None:
            raise DestinationRefused(
                f"{self._where}: the rows of transaction {change.txid} have no column {self._declared.key}, which is "
                "to be their key; nothing was sent; deploy the spec with which they were written"
            )
        return keyed

    def _take_turn(self, content: Content) -> bool:
        """Wait until nobody else sends, and say whether there was somebody: two that each end what the other one has
        begun would never come to an end.

        Only that depends on it. Whoever is stopped loses its turn, and is fenced.
        """
        named = [f"ratchet destination {self._owner.pipeline} {self._declared.address}"]
        limited = sql.SQL("set local idle_in_transaction_session_timeout = {}").format(f"{_SILENT_SECONDS}s")
        try:
            content.conn.execute(limited)
            got = content.conn.execute("select pg_try_advisory_xact_lock(hashtextextended(%s, 0))", named).fetchone()
            if got is not None and got[0]:
                return False
            content.conn.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", named)
            return True
        except psycopg.Error as error:
            raise LedgerUnreachable(f"the ledger did not answer while a turn was waited for: {error}") from error

    def _may_be_at(self, at: Mark) -> bool:
        try:
            kept = self._read()
        except Undecided:
            return True
        return kept is not None and kept.mark == at

    def _become_the_one(self) -> TransactionalProducer:
        """A producer that ends what all earlier ones have begun; then what the mark is."""
        self._topic()
        producer = self._producer_of_its_own()
        try:
            self._kept = self._read()
        except Undecided as error:
            raise DestinationUnreachable(
                f"{self._where}: a transaction of another pipeline holds the end of {MARKS}; it is decided by that "
                "pipeline, or after 15 minutes by Kafka; what is committed waits for it"
            ) from error
        return producer

    def _producer_of_its_own(self) -> TransactionalProducer:
        self.let_go()
        topic = self._declared.name
        longest, by = self._marks.longest_record(topic), f"ratchet-{self._owner.pipeline}-{topic}"
        try:
            self._producer = TransactionalProducer(self._properties, by, self._where, topic, longest)
        except ProducerFenced as error:
            raise DestinationUnreachable(f"{self._where}: another process begins to send; try again") from error
        return self._producer

    def _has_mark(self) -> bool:
        try:
            return self._read() is not None
        except Undecided:
            return False

    def _read(self) -> Kept | None:
        kept = self._mine(self._marks.read(self._key))
        if kept is not None:
            self._see_that_it_is(kept)
        return kept

    def _mine(self, kept: Kept | None) -> Kept | None:
        """The mark; DestinationRefused where it is another destination's: its steps say nothing of these rows."""
        if kept is not None and (kept.sink, kept.destination) != (self._owner.sink, self._declared.address):
            raise DestinationRefused(
                f"{self._where}: the topic gets rows of {kept.sink} already, by {kept.destination}; a pipeline sends "
                "the rows of one sink to a topic; name another topic"
            )
        return kept

    def _see_that_it_is(self, kept: Kept) -> None:
        """DestinationRefused unless the topic is the one that it was at the start."""
        topic_id, partitions = self._topic()
        if kept.format != self._declared.format:
            raise DestinationRefused(
                f"{self._where}: the topic gets {kept.format}, and is to get {self._declared.format}: readers would "
                "find both; nothing was sent since; declare another topic; to go on with this one all the same, "
                f"{self._anew}"
            )
        if topic_id != kept.topic_id:
            raise DestinationRefused(
                f"{self._where}: the topic was deleted and made anew: its id is {topic_id}, and was {kept.topic_id}; "
                f"what was sent is gone, and nothing was sent since; to go on with the new one, {self._anew}"
            )
        if partitions != kept.partitions:
            raise DestinationRefused(
                f"{self._where}: the topic has {partitions} partitions, and had {kept.partitions}: rows of one key "
                f"would come to lie in two, without an order; nothing was sent since; to go on all the same, "
                f"{self._anew}; or declare a new topic"
            )

    @property
    def _anew(self) -> str:
        of = f"{self._owner.pipeline} {self._declared.address}"
        return f"`ratchet attach {of} --from-here`, which leaves out what it lacks"

    def _topic(self) -> tuple[str, int]:
        """(id, number of partitions)."""
        try:
            topic_id, partitions = self._marks.topic_id(self._declared.name)
        except UnknownTopic:
            raise DestinationRefused(
                f"{self._where}: there is no such topic at {self._marks.servers}; create it, with as many partitions "
                "as it shall have for good: with others, rows of one key would lie in two"
            ) from None
        return topic_id, len(partitions)

    def _see_that_none_are_there(self, change: Change, kept: Kept, to: Mark) -> None:
        """DestinationRefused where rows have been sent that the change would take the place of.

        One that was void until now replaces none.
        """
        sent = sql.SQL(
            "select exists (select from ratchet.steps where pipeline = {} and txid = {} and step > {} and step < {})"
        ).format(self._owner.pipeline, change.txid, kept.since, to.step)
        found = change.conn.execute(sent).fetchone()
        if found is None or found[0]:
            raise DestinationRefused(
                f"{self._where}: transaction {change.txid} is revised, and what a topic has cannot be taken back; "
                f"nothing was sent; `ratchet detach {self._owner.pipeline} {self._declared.address}` lets the line go "
                "on without it"
            )

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (BrokerUnreachable, IncompleteRead) as error:
            raise no_answer(self._where, str(error)) from error
        except NotGranted as error:
            raise DestinationRefused(f"{self._where}: {error}; nothing was sent; it needs {self._rights}") from error

    @property
    def _rights(self) -> str:
        topic = self._declared.name
        return (
            f"WRITE and DESCRIBE_CONFIGS on topic {topic!r}, READ, WRITE and DESCRIBE_CONFIGS on topic {MARKS!r} (and "
            f"CREATE, while it is not there), and WRITE on transactional id 'ratchet-{self._owner.pipeline}-{topic}'"
        )
