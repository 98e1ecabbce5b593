"""Each error code explained: what it means, what is changed, and what to do; `ratchet explain` and docs/errors.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ratchet import errors
from ratchet.errors import SettingsError

AREAS = {
    "1": "Spec and settings",
    "2": "Ledger",
    "3": "Kafka",
    "4": "Transactions",
    "5": "Work",
    "6": "Destinations",
    "9": "Embedded servers",
}


@dataclass(frozen=True)
class Explained:
    """An error class for people: when it is raised, what is changed then, and the steps of its remedy, in order."""

    error: type[errors.RatchetError]
    when: str
    changed: str
    steps: tuple[str, ...]

    @property
    def code(self) -> str:
        return self.error.code

    @property
    def retried(self) -> bool:
        """Whether Airflow tries the task again by itself."""
        return issubclass(self.error, errors.WORTH_ANOTHER_TRY)

    def lines(self) -> Iterator[str]:
        """What a person reads of it."""
        yield f"{self.code} {self.error.__name__}: {self.error.__doc__}"
        yield f"when: {self.when}"
        yield f"changed: {self.changed}"
        again = "by Airflow, twice more, or as the spec's `airflow` says"
        yield f"retried: {again if self.retried else 'no; the next try would end in the same way'}"
        yield from (f"{number}. {step}" for number, step in enumerate(self.steps, 1))


_NOTHING = "nothing"
_SLICE = "nothing is voted; rows that the try has written are removed before the head passes the transaction"
EXPLAINED = (
    Explained(
        errors.SpecError,
        "A pipeline's spec is read, by Airflow, a task or a command, and a field is not valid; or a line cannot begin "
        "where `Topic.begin` says.",
        "nothing; other pipelines go on",
        (
            "Correct the field that the message names.",
            "Run `ratchet validate`, which checks every spec without a server; `ratchet plan NAME` says where a line "
            "would begin.",
        ),
    ),
    Explained(
        errors.SettingsError,
        "A variable, a connection of Airflow, an option or an argument is missing, or cannot be honoured.",
        _NOTHING,
        (
            "Set what the message names.",
            "Of a Kafka connection, docs/server.md lists the properties that are taken.",
        ),
    ),
    Explained(
        errors.NotGranted,
        "PostgreSQL or Kafka refuses a right to the user of the connection.",
        _NOTHING,
        (
            "For PostgreSQL, run `ratchet migrate --pipeline-role ROLE` as the ledger's owner.",
            "For Kafka, grant the operation that the message names, on that topic or group.",
            "Clear the failed task.",
        ),
    ),
    Explained(
        errors.LedgerUnreachable,
        "PostgreSQL does not answer, or the connection was lost before a COMMIT was sent.",
        "nothing of the step that failed",
        (
            "See that PostgreSQL runs and that the connection's address and password are right.",
            "Wait: tasks are tried again, and maintenance starts a run for what is left.",
        ),
    ),
    Explained(
        errors.ConnectionsTaken,
        "PostgreSQL, a role, a database or a pooler gives no further connection, and none became free in time.",
        _NOTHING,
        (
            "Raise the limit that the message names, such as `max_connections`.",
            "Or let fewer tasks work at once: `spark.executor.cores`, `max_in_flight`, Airflow's pools.",
        ),
    ),
    Explained(
        errors.OutcomeUnknown,
        "The connection was lost after a COMMIT was sent and before PostgreSQL has answered.",
        "everything of that step, or nothing; the ledger knows which",
        (
            "Do the same again: the same call finds what was done, and does nothing twice.",
            "Or ask `ratchet history NAME TXID` what has happened.",
        ),
    ),
    Explained(
        errors.NotMigrated,
        "The ledger's schema, or a table of a sink, is missing or differs from the spec.",
        _NOTHING,
        (
            "Run `ratchet migrate NAME --dry-run` to see what would be done, then without `--dry-run`.",
            "Where it refuses, it names the ways on; docs/operations.md has a table of all changes of a spec.",
        ),
    ),
    Explained(
        errors.Locked,
        "Another session holds a lock that a migration, a drop or a pass of maintenance needs.",
        _NOTHING,
        (
            "End the session that the message names, or wait for its end.",
            "Do the same again.",
        ),
    ),
    Explained(
        errors.BrokerUnreachable,
        "No broker of the Kafka connection answers, or none that has the topic's data.",
        _NOTHING,
        (
            "See that Kafka runs, and that `bootstrap.servers` and the security properties are right.",
            "Wait: tasks are tried again, and maintenance starts a run for what is left.",
        ),
    ),
    Explained(
        errors.UnknownTopic,
        "Kafka has no topic of the spec's name, or hides it from this user.",
        _NOTHING,
        (
            "Create the topic, correct the name in the spec, or grant DESCRIBE on it.",
            "One of several that is gone for good is left by `ratchet accept-loss NAME --reason …`; a replay of its "
            "records is given up at once, and the old result stays.",
            "Clear the failed run.",
        ),
    ),
    Explained(
        errors.CompactedTopic,
        "The topic's `cleanup.policy` has `compact` and the spec does not say `compacted=True`, or the reverse.",
        _NOTHING,
        (
            "Read a topic with `cleanup.policy=delete`, whose missing offsets are losses.",
            "Or say `compacted=True` to read the last value of each key; docs/guide.md says what is promised then.",
        ),
    ),
    Explained(
        errors.TopicChanged,
        "The topic has another id, or a partition's log was cut below what the ledger has planned.",
        "nothing; the line stands still",
        (
            "Find out whether the topic was deleted and made again, or a broker has lost records.",
            "Run `ratchet accept-loss NAME --dry-run`, which names the offsets on both sides.",
            "Run it with `--reason`: the line goes on with every new record, in a source of its own.",
            "Of a replay nothing: its records are gone, so it is given up at once, and the old result stays.",
        ),
    ),
    Explained(
        errors.Repartitioned,
        "The topic has more partitions, and a sink keeps the last record of a key by its place in its partition.",
        "nothing; the line stands still before the new partitions",
        (
            "Find out since when producers know the new partitions.",
            "Run `ratchet repartitioned NAME --at TIME --reason …`, or without `--at` for now.",
        ),
    ),
    Explained(
        errors.RecordsLost,
        "Kafka's retention has deleted records that no transaction has taken yet.",
        "nothing; the line stands still",
        (
            "Bring the records back, if a copy is there, into another topic with a pipeline of its own.",
            "Run `ratchet accept-loss NAME --dry-run`, which names the offsets.",
            "Run it with `--reason`: the line goes on behind them.",
            "Raise the topic's retention, or run the pipeline more often.",
        ),
    ),
    Explained(
        errors.BrokenBatch,
        "A record batch fails its checksum, or says something else of itself than it holds.",
        _SLICE,
        (
            "Restore the partition's data from another replica: a new leader has another copy.",
            "Where no copy is whole, have the offsets deleted in Kafka, then `ratchet accept-loss NAME`.",
        ),
    ),
    Explained(
        errors.GroupHasMembers,
        "The consumer group in which offsets are mirrored for monitoring has members that consume.",
        "nothing; only the mirrored offsets stay behind",
        ("Stop these consumers, or give them another group id.",),
    ),
    Explained(
        errors.RegistryUnreachable,
        "A format's registry of schemas does not answer, or answers for long that it cannot at present.",
        _SLICE,
        (
            "See that the registry runs, and that the workers of Spark reach the host of the connection that the "
            "message names.",
            "Wait: tasks are tried again, and such an outage counts as no failure.",
        ),
    ),
    Explained(
        errors.TombstonesLost,
        "A compacted topic was not read to its end within its `delete.retention.ms`, so that deletions may be gone.",
        "nothing; the line stands still, or the slice has no vote",
        (
            "Rows of keys whose deletions are gone would stay for ever: find out whether keys are deleted at all.",
            "If that is accepted, run `ratchet accept-loss NAME` with `--reason`: the line goes on, and the time "
            "counts anew.",
            "Else let a new pipeline with new tables read the topic from the beginning.",
            "Run the pipeline more often, or raise the topic's `delete.retention.ms`.",
        ),
    ),
    Explained(
        errors.Fenced,
        "A task goes on with a claim, an epoch or a try that a newer one has replaced, or a transaction is not there.",
        _NOTHING,
        (
            "Of a task, nothing has to be done: the newer claim has the work.",
            "Of a command, correct the txid.",
            "To see who has it, run `ratchet history NAME TXID`.",
        ),
    ),
    Explained(
        errors.OtherCode,
        "A process has other code, or another spec, than the epoch on which it was to work, as amid a deploy.",
        _NOTHING,
        (
            "Nothing has to be done if the deploy comes to its end: the next run begins a new epoch with its code.",
            "If it stays so, see that all workers have the same checkout.",
        ),
    ),
    Explained(
        errors.IllegalMove,
        "A move does not fit the state of the transaction, such as `void` of one that is committed.",
        _NOTHING,
        (
            "Run `ratchet status NAME`, which says the state.",
            "Choose a move that fits: docs/protocol.md has the states and the moves between them.",
        ),
    ),
    Explained(
        errors.Refused,
        "A gate, or the check of a vote, says no to what was written.",
        "the epoch is aborted; the next run begins a new one, until `max_failures` halts the line",
        (
            "Read the reason in `ratchet history NAME TXID`.",
            "Correct the transform or the gate, deploy, and run `ratchet retry NAME`.",
            "Or give the transaction up: `ratchet void NAME TXID --reason …`.",
        ),
    ),
    Explained(
        errors.Halted,
        "A transaction has failed `max_failures` times, and none behind it may commit before it.",
        _NOTHING,
        (
            "Read why in `ratchet status NAME`.",
            "Correct the cause, then `ratchet retry NAME`.",
            "Or give the transaction up: `ratchet void NAME TXID --reason …`; it can be replayed later.",
        ),
    ),
    Explained(
        errors.NotRevisable,
        "A clear or a replay would revise a transaction whose rows are merged, expired, erased or pruned.",
        "nothing; the old result stays",
        ("Keep deltas for longer (`keep_deltas`, `keep`) if such replays are needed; this one cannot be had.",),
    ),
    Explained(
        errors.TransformError,
        "The transform raises, or returns a sink or a column that the spec does not declare.",
        _SLICE,
        (
            "Read the message: it names the file and the line of your own code, or the statement; the task's log has "
            "the lines that led there.",
            "Correct the transform or the spec, deploy, and run `ratchet retry NAME` if the line is halted.",
        ),
    ),
    Explained(
        errors.EngineLost,
        "Spark, a worker or the connection to it ends amid a slice.",
        _SLICE,
        (
            "See Spark's log for its end: most often memory, or a node that was taken away.",
            "Wait: the slice is tried again.",
        ),
    ),
    Explained(
        errors.EngineUnreachable,
        "Spark does not answer before a slice has begun.",
        _NOTHING,
        (
            "See that Spark runs, and that the address and token of the connection are right.",
            "Wait: tasks are tried again, and such an outage counts as no failure.",
        ),
    ),
    Explained(
        errors.WritingFailed,
        "PostgreSQL refuses the rows that a Spark task writes, as where the disk is full.",
        _SLICE,
        (
            "Correct what PostgreSQL names.",
            "Run `ratchet retry NAME` if the line is halted by then.",
        ),
    ),
    Explained(
        errors.CommitFailed,
        "PostgreSQL refuses a statement of a commit: a limit of the role, a constraint of a table of your own.",
        "nothing; the transaction stays prepared",
        (
            "Correct what PostgreSQL names.",
            "Start a run, or wait for one: it commits what is prepared.",
        ),
    ),
    Explained(
        errors.IncompleteRead,
        "A Spark job ends before it has read its ranges to their end.",
        _SLICE,
        (
            "Wait: the slice is tried again.",
            "If it comes again, see whether a broker is slow or lacks a replica.",
        ),
    ),
    Explained(
        errors.StageMismatch,
        "The rows in the tables are not those that the votes name, by number or checksum.",
        "the epoch is aborted; nothing is applied",
        (
            "Find out who else has written to the delta tables or stages: only ratchet may.",
            "Start a run: it begins a new epoch, which writes all rows anew.",
        ),
    ),
    Explained(
        errors.DestinationUnreachable,
        "A destination of a sink does not answer when a commit, or the maintenance, sends it what is committed.",
        "what is committed stays so; the line commits nothing more until the destination has it",
        (
            "See that the server runs, and that the host of the connection that the message names is reached.",
            "Wait: tasks are tried again, and the maintenance sends what is missing; nothing has to be cleared.",
            "Where it is gone for long, `ratchet detach NAME DESTINATION` lets the line go on without it.",
        ),
    ),
    Explained(
        errors.DestinationRefused,
        "A destination does not take the rows: a constraint, a type, a right, a size, or a table that is not there.",
        "what is committed stays so; the destination has nothing of the step; the line commits nothing more",
        (
            "Correct there what the message names; the next run, or the maintenance, sends the rows.",
            "Else `ratchet detach NAME DESTINATION` lets the line go on without it.",
        ),
    ),
    Explained(
        errors.MarkMoved,
        "A destination's mark is no step of this ledger, or one before what it had: somebody else has written there, "
        "or the ledger or the destination was restored from a backup.",
        "what is committed stays so; the destination has got nothing; the line commits nothing more",
        (
            "Find out who has written there: the destination's mark names the pipeline.",
            "`ratchet detach NAME DESTINATION` lets the line go on meanwhile.",
            "`ratchet attach NAME DESTINATION --anew` puts all rows of the ledger in place of what is there; "
            "`--from-here` leaves what is there, and sends what is committed from then on.",
        ),
    ),
    Explained(
        errors.StackError,
        "A server of this checkout does not start, or a program that it needs is missing.",
        _NOTHING,
        ("Do what the message says; the servers' logs are below `.state`.",),
    ),
)


def explained(code: str) -> Explained:
    """The explanation of a code, also in lower case or as its number alone; SettingsError where there is none."""
    wanted = code.strip().upper().removeprefix("RAT-")
    for one in EXPLAINED:
        if one.code == f"RAT-{wanted}":
            return one
    raise SettingsError(f"there is no error code {code}; there are {', '.join(one.code for one in EXPLAINED)}")


def document() -> str:
    """The page docs/errors.md."""
    lines = [
        "# Error codes",
        "",
        "Each error that ratchet raises on purpose has a code, which stays the same when its message is worded anew.",
        "The command prints it before the message, a task's log behind it, and the history of a transaction keeps it.",
        "`ratchet explain RAT-306` prints what this page says of one code.",
    ]
    area = ""
    for one in EXPLAINED:
        if one.code[4] != area:
            area = one.code[4]
            lines += ["", f"## {AREAS[area]}"]
        lines += ["", f"### {one.code} {one.error.__name__}", "", f"{one.error.__doc__}", ""]
        lines += [f"- When: {one.when}", f"- Changed: {one.changed}."]
        lines += [f"- Tried again by Airflow: {'yes' if one.retried else 'no'}.", ""]
        lines += [f"{number}. {step}" for number, step in enumerate(one.steps, 1)]
    return "\n".join(lines) + "\n"
