"""Every error that ratchet raises on purpose; the docstring of a class is its default message.

A class has a code, which stays what it is: alerts and pages go by it, since a message may be worded anew. The first
digit says where to look: 1 spec and settings, 2 ledger, 3 Kafka, 4 transactions, 5 work, 6 destinations, 9 embedded
servers.
"""

from typing import ClassVar


class RatchetError(Exception):
    """ratchet could not go on."""

    code: ClassVar[str]

    def __init__(self, message: str | None = None):
        super().__init__(message or type(self).__doc__)


class SpecError(RatchetError):
    """The pipeline's spec is not valid; correct the field that is named."""

    code = "RAT-101"


class SettingsError(RatchetError):
    """A setting or a connection is missing or wrong; set it as the message says."""

    code = "RAT-102"


class NotGranted(SettingsError):
    """The connection's user lacks a right; grant it, or correct the connection."""

    code = "RAT-103"


class LedgerUnreachable(RatchetError):
    """The ledger's database does not answer; check that it runs and that the connection is right."""

    code = "RAT-201"


class ConnectionsTaken(LedgerUnreachable):
    """The ledger's database gives no further connection; raise the limit that it names, or let fewer tasks work."""

    code = "RAT-202"


class OutcomeUnknown(LedgerUnreachable):
    """The ledger's database did not say whether it has committed; call again: the ledger tells what was done."""

    code = "RAT-203"


class BrokerUnreachable(RatchetError):
    """No Kafka broker answers; check that it runs and that bootstrap.servers is right."""

    code = "RAT-301"


class GroupHasMembers(RatchetError):
    """The consumer group has live members, and its offsets are theirs; stop them, or name a group that nobody uses."""

    code = "RAT-308"


class RegistryUnreachable(RatchetError):
    """The registry of schemas does not answer; check that it runs and that its connection is right."""

    code = "RAT-309"


class DestinationUnreachable(RatchetError):
    """A destination does not answer; what is committed waits for it, and is sent when it answers again."""

    code = "RAT-601"


class DestinationRefused(RatchetError):
    """A destination does not take what is committed; correct its cause there, or detach it."""

    code = "RAT-602"


class MarkMoved(RatchetError):
    """A destination's mark is not what the ledger says: somebody else has written there; a person must decide."""

    code = "RAT-603"


class UnknownTopic(RatchetError):
    """The topic does not exist; create it or correct the spec's topic."""

    code = "RAT-302"


class CompactedTopic(RatchetError):
    """The topic is compacted and the spec does not say so, or the reverse; correct compacted, or read another one."""

    code = "RAT-303"


class TopicChanged(RatchetError):
    """The topic was deleted and made again; its offsets no longer mean what the ledger says."""

    code = "RAT-304"


class Repartitioned(RatchetError):
    """The topic has more partitions than were planned, so keys have moved; a person must say from where on."""

    code = "RAT-305"


class RecordsLost(RatchetError):
    """Kafka no longer has records that the plan needs; a person must decide what they were worth."""

    code = "RAT-306"


class TombstonesLost(RecordsLost):
    """Kafka may have removed deletions that were not read, so rows of their keys would stay; a person must decide."""

    code = "RAT-310"


class BrokenBatch(RatchetError):
    """Kafka holds a record batch that cannot be read exactly; a person must restore it, or decide what it was worth."""

    code = "RAT-307"


class NotMigrated(RatchetError):
    """The ledger or a sink's table is missing or does not fit; run `ratchet migrate`."""

    code = "RAT-204"


class Locked(RatchetError):
    """A table stays locked by somebody else; nothing was changed; end that, and try again."""

    code = "RAT-205"


class Fenced(RatchetError):
    """This token is no longer the current one: somebody newer has the work, and nothing was changed."""

    code = "RAT-401"


class OtherCode(RatchetError):
    """This process has other code or another spec than the transaction; nothing was changed, the next run goes on."""

    code = "RAT-402"


class IllegalMove(RatchetError):
    """The transaction is in a state from which this move is not allowed; nothing was changed."""

    code = "RAT-403"


class TransformError(RatchetError):
    """The transform failed, or returned what the spec does not declare; correct the transform or the spec."""

    code = "RAT-501"


class EngineLost(RatchetError):
    """Spark, one of its workers or the connection to it went away; nothing was voted, the slice is tried again."""

    code = "RAT-502"


class EngineUnreachable(EngineLost):
    """Spark does not answer, so no work was begun; check that it runs and that the connection is right."""

    code = "RAT-503"


class WritingFailed(RatchetError):
    """PostgreSQL could not take what was staged; nothing was voted, the slice is tried again."""

    code = "RAT-504"


class CommitFailed(RatchetError):
    """PostgreSQL could not commit what is prepared; nothing was changed, and it stays prepared."""

    code = "RAT-505"


class IncompleteRead(RatchetError):
    """The job did not reach the end of its ranges; nothing was voted, the slice is tried again."""

    code = "RAT-506"


class StageMismatch(RatchetError):
    """What is staged is not what the votes say; nothing was applied, the transaction is aborted."""

    code = "RAT-507"


class Refused(RatchetError):
    """A check on the staged data said no; the transaction is aborted with this reason."""

    code = "RAT-404"


class Halted(RatchetError):
    """The pipeline is halted at a transaction that failed too often; a person must decide about it."""

    code = "RAT-405"


class NotRevisable(RatchetError):
    """This transaction cannot be revised; the old result stays."""

    code = "RAT-406"


class StackError(RatchetError):
    """An embedded server could not be started; the message says what to do."""

    code = "RAT-901"


WORTH_ANOTHER_TRY = (
    LedgerUnreachable,
    BrokerUnreachable,
    RegistryUnreachable,
    DestinationUnreachable,
    WritingFailed,
    CommitFailed,
    IncompleteRead,
    EngineLost,
)
"""What may be gone at the next try; every other error stays until somebody corrects its cause."""

OUTAGES = (LedgerUnreachable, BrokerUnreachable, RegistryUnreachable, DestinationUnreachable, EngineUnreachable)
"""What says that a server does not answer."""


GONE = (UnknownTopic, TopicChanged, RecordsLost)
"""What says that Kafka has planned records no more: no later try finds them."""


def is_outage(error: RatchetError) -> bool:
    """Whether a server did not answer: no transaction is to blame for that, however often it happens.

    One that answers that all connections are in use will say so again until a person raises a limit.
    """
    return isinstance(error, OUTAGES) and not isinstance(error, ConnectionsTaken)


FAILED_FOR_GOOD = 65
"""The exit status of a submitted driver after an error that another try cannot mend."""
