"""What the brokers' metadata say of topics: which there are, their ids and partitions, whether they are compacted."""

# The annotations that pyright brings for kafka-python are of another version.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

import kafka.errors as client_errors
from kafka.admin import ConfigResource, ConfigResourceType

from ratchet.errors import CompactedTopic, SettingsError, UnknownTopic
from ratchet.ledger.topics import MOST_TOPICS, LineTopic, Topics, of_line, titled
from ratchet.source.client import Client
from ratchet.source.offsets import KnownLogs

_NO_TOPIC_IDS = ("None", str(UUID(int=0)))
"""How the client gives the id of a topic whose brokers know of none."""
_KEPT = "delete.retention.ms"
_MOST_MS = 100 * 365 * 24 * 3600 * 1000
_KEEPS_TOMBSTONES = (3, 1)
"""The first version of Kafka that keeps a tombstone for `delete.retention.ms` from when it was first cleaned."""
_MISSING = client_errors.UnknownTopicOrPartitionError
_Told = dict[str, dict[str, Any]]
"""{topic: its metadata}."""


class Subscription(Protocol):
    """Which topics are meant: those with `names` or, where there is a `pattern`, whichever it `wants`."""

    @property
    def names(self) -> Sequence[str]: ...
    @property
    def pattern(self) -> str | None: ...
    @property
    def compacted(self) -> bool: ...
    def wants(self, name: str) -> bool:
        """Whether a topic of this name is meant."""
        ...


class Describing(Client):
    """The brokers' metadata of topics, of all of them in one request."""

    def topic_id(self, topic: str) -> tuple[str, list[int]]:
        """(id, partitions) of a topic; UnknownTopic if there is none."""
        return self._reaching(lambda: self._topic_id(topic), describing([topic]))

    def topics(self, of: Subscription, known: Topics | None = None) -> Topics:
        """The topics that are meant, as they are now, the known ones in their places.

        Raises UnknownTopic where one is not there, NotGranted where its records may not be read.
        """
        right = describing([*of.names]) if of.names else f"DESCRIBE on the topics that {of.pattern!r} matches"
        return self._reaching(lambda: self._found(of, KnownLogs(known or Topics()))[0], right)

    def ids(self, topics: Collection[str]) -> dict[str, str]:
        """{topic: its id}, of those that are there."""

        def look() -> dict[str, str]:
            found = self._open().describe_topics(list(topics))
            return {t["name"]: str(t["topic_id"]) for t in found if not t["error_code"]}

        return self._reaching(look, describing([*topics])) if topics else {}

    def _topic_id(self, topic: str) -> tuple[str, list[int]]:
        found = self._described([topic])[topic]
        return self._id_of(found), sorted(p["partition_index"] for p in found["partitions"])

    def _found(self, of: Subscription | Sequence[str], known: KnownLogs) -> tuple[Topics, list[int]]:
        """(the line's topics by number, their partitions of the line); those that are not asked for have no id.

        Known ones keep their numbers, others come behind them.
        """
        told = self._told(of, known)
        topics = numbered(known.topics, {name: self._id_of(found) for name, found in told.items()})
        if len(topics) > MOST_TOPICS:
            many = f"{len(topics):,} topics at {self.servers} are too many"
            raise SettingsError(f"{many}; a line has {MOST_TOPICS:,} at most")
        places = [
            of_line(number, p["partition_index"])
            for number, name in enumerate(topics.names)
            if name in told
            for p in told[name]["partitions"]
        ]
        return topics, sorted(places)

    def _told(self, of: Subscription | Sequence[str], known: KnownLogs) -> _Told:
        """The metadata of the topics that are asked for; their records may be read."""
        besides = known.topics.names if known.may_lack else ()
        if isinstance(of, Sequence):
            told = self._described([*dict.fromkeys((*of, *besides))], may_lack=known.may_lack)
        elif of.pattern is None:
            told = self._described([*dict.fromkeys((*of.names, *besides))], may_lack=known.may_lack)
        else:
            told = self._matching(of, besides)
        for name, found in told.items():
            if "READ" not in (found.get("authorized_operations") or ["READ"]):
                raise self._lacking(f"READ on topic {name!r}", "the broker says what it grants")
        return told

    def _matching(self, of: Subscription, besides: Collection[str]) -> _Told:
        """Those whose names are wanted, by name; UnknownTopic if there is none."""
        shown = {each["name"]: each for each in self._open().describe_topics(None) if not each["is_internal"]}
        wanted = sorted(name for name in shown if of.wants(name) or name in besides)
        if not wanted:
            raise UnknownTopic(
                f"no topic at {self.servers} has a name that the pattern {of.pattern!r} matches as a whole; create one,"
                " correct the pattern, or grant DESCRIBE on the topics"
            )
        return {name: self._without_error(name, shown[name]) for name in wanted}

    def _described(self, topics: Sequence[str], *, may_lack: bool = False) -> _Told:
        """{topic: the brokers' metadata}; UnknownTopic where one, or all that may lack, are not there."""
        found = {each["name"]: each for each in self._open().describe_topics(list(topics))}
        absent = [
            topic
            for topic in topics
            if topic not in found
            or client_errors.for_code(found[topic]["error_code"]) in (_MISSING, client_errors.InvalidTopicError)
        ]
        if absent and not (may_lack and len(absent) < len(topics)):
            are = "there is no" if len(absent) == 1 else "there are no"
            named = titled([repr(topic) for topic in absent])
            raise UnknownTopic(f"{are} {named} at {self.servers}; create it or correct the spec's topic")
        return {topic: self._without_error(topic, found[topic]) for topic in topics if topic not in absent}

    def _without_error(self, topic: str, found: dict[str, Any]) -> dict[str, Any]:
        error = client_errors.for_code(found["error_code"])
        if issubclass(error, client_errors.AuthorizationError):
            raise self._lacking(f"DESCRIBE on topic {topic!r}", error.__name__)
        if error is not client_errors.NoError:
            raise error(f"topic {topic!r}")
        return found

    def _id_of(self, found: Mapping[str, Any]) -> str:
        topic_id = str(found["topic_id"])
        if topic_id in _NO_TOPIC_IDS:
            raise SettingsError(
                f"Kafka at {self.servers} gives topic {found['name']!r} no id, by which one that is made again is told "
                "from it; brokers from 2.8 on give ids, with an inter.broker.protocol.version as new"
            )
        return topic_id

    def _kept(self, topics: Collection[str], *, compacted: bool) -> timedelta | None:
        """How long compaction keeps the tombstones of topics, the least of them; None where they are not compacted.

        CompactedTopic where a topic is compacted or not as the spec does not say it, SettingsError where the brokers do
        not say that, or keep tombstones for less than they say.
        """
        admin, name = self._open(), "cleanup.policy"
        # The client's own call gives a topic whose settings are refused as one without settings.
        wanted = dict.fromkeys((name, _KEPT))
        asked = [ConfigResource(ConfigResourceType.TOPIC, topic, wanted) for topic in topics]
        kept: list[timedelta] = []
        for said in admin._manager.run(admin._manager.send, admin._describe_configs_request(asked)).results:
            topic = said.resource_name
            error = client_errors.for_code(said.error_code)
            if issubclass(error, client_errors.AuthorizationError):
                raise self._lacking(f"DESCRIBE_CONFIGS on topic {topic!r}", error.__name__)
            if error is not client_errors.NoError:
                raise error(f"topic {topic!r}: {said.error_message}")
            values = {config.name: config.value for config in said.configs}
            policy = values.get(name)
            if not policy:
                raise SettingsError(
                    f"Kafka at {self.servers} does not say the {name} of topic {topic!r}; whether it is compacted must "
                    "be known, since records that compaction removes cannot be told from losses"
                )
            if ("compact" in policy) != compacted:
                raise CompactedTopic(_otherwise(f"topic {topic!r} at {self.servers}", policy, compacted=compacted))
            if compacted:
                if not values.get(_KEPT):
                    raise SettingsError(
                        f"Kafka at {self.servers} does not say the {_KEPT} of topic {topic!r}; until when its "
                        "tombstones can be read must be known"
                    )
                # Whoever keeps them for ever gives the greatest number.
                kept.append(timedelta(milliseconds=min(int(values[_KEPT]), _MOST_MS)))
        if compacted:
            self._check_cleaners()
        return min(kept, default=None)

    def _check_cleaners(self) -> None:
        """SettingsError for a broker that may remove a tombstone before its delete.retention.ms is over."""
        old = sorted(node for node, version in self.versions().items() if version < _KEEPS_TOMBSTONES)
        if old:
            least = ".".join(map(str, _KEEPS_TOMBSTONES))
            raise SettingsError(
                f"broker {old[0]} at {self.servers} is older than Kafka {least}, and counts {_KEPT} from another time "
                "than that at which it first cleaned: a compacted topic cannot be read exactly there; upgrade it"
            )


def _otherwise(topic: str, policy: str, *, compacted: bool) -> str:
    """That a topic is compacted where the spec does not say so, or the reverse."""
    if compacted:
        return (
            f"{topic} has cleanup.policy={policy}, and the spec says compacted=True: a hole in it would be a loss, "
            "and would not be told; leave compacted out, or have Kafka compact the topic"
        )
    return (
        f"{topic} has cleanup.policy={policy}: compaction removes records, so its holes cannot be told from losses; "
        "read a topic with cleanup.policy=delete, or say compacted=True in Topic to read the last value of each key"
    )


def numbered(known: Topics, ids: Mapping[str, str]) -> Topics:
    """The topics that are known, in their places, and behind them the others of {name: id}, in order."""
    was = {each.name: each for each in known}
    names = (*known.names, *(name for name in ids if name not in was))
    return Topics(tuple(LineTopic(name, ids.get(name, ""), name in was and was[name].left) for name in names))


def describing(topics: Sequence[str]) -> str:
    """The right that the brokers want granted for these."""
    return f"DESCRIBE on {titled([repr(topic) for topic in topics])}"
