"""Why a job failed: the transform, the engine, the topic, or a word of ratchet's own that a worker said."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeGuard

from py4j.protocol import Py4JError
from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    IllegalArgumentException,
    PySparkException,
    PythonException,
    QueryContextType,
    SparkNoSuchElementException,
    SparkRuntimeException,
    UnsupportedOperationException,
)
from pyspark.logger import PySparkLogger

from ratchet import errors
from ratchet.errors import (
    BrokerUnreachable,
    EngineLost,
    RatchetError,
    RecordsLost,
    TopicChanged,
    TransformError,
    UnknownTopic,
)
from ratchet.values.own_code import Frame, frames_of, is_of_library, listed, own_frames, package_of, place
from ratchet.values.withheld import named, place_of

_OF_THE_QUERY = (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    IllegalArgumentException,
    SparkNoSuchElementException,
    SparkRuntimeException,
    UnsupportedOperationException,
)
_OF_THE_ENGINE = frozenset(
    {
        "INVALID_CURSOR",
        "INVALID_HANDLE",
        "INTERNAL_ERROR_BROADCAST",
        "INTERNAL_ERROR_EXECUTOR",
        "INTERNAL_ERROR_MEMORY",
        "INTERNAL_ERROR_NETWORK",
        "INTERNAL_ERROR_SHUFFLE",
        "INTERNAL_ERROR_STORAGE",
        "KAFKA_DATA_LOSS",
        "NO_ACTIVE_OR_DEFAULT_SESSION",
        "NO_ACTIVE_SESSION",
        "OPERATION_CANCELED",
        "RESPONSE_ALREADY_RECEIVED",
        "SPARK_JOB_CANCELLED",
        "UNABLE_TO_ACQUIRE_MEMORY",
    }
)
"""Spark's conditions that say something about the server or its workers, and nothing about the query."""
_RAISED = re.compile(r"(?:  File [^\n]*\n(?:    [^\n]*\n)*)+(?P<kind>[\w.]+)(?:: (?P<said>.*))?\Z", re.DOTALL)
_FRAME = re.compile(r'^  File "([^"\n]+)", line (\d+), in ([^\n]+)', re.MULTILINE)
_WORKER_SUFFIX = re.compile(r"\s*SQLSTATE: 38000\s*\Z")
_GRPC_DETAILS = re.compile(r'<_\w*Rpc\w*Error of RPC .*?^\s*details = "(.*?)"$', re.DOTALL | re.MULTILINE)
_PLAN = re.compile(r";\n'?\w+[^\n]*\n\+- .*\Z", re.DOTALL)
_CALLED_FROM = re.compile(r'\n== DataFrame ==\n"[^"\n]*" was called from\n[^\n]*')
_OWN = f"{errors.__name__}."
CONNECT_LOGGER = "pyspark.sql.connect.logging"
"""That of the client of Spark Connect."""


@contextmanager
def explained(where: str, transform: str, check_topic: Callable[[], None], private: bool = False) -> Iterator[None]:
    """Turn whatever the transform or Spark raises into the error that says what to do.

    `where` names pipeline, transaction and slice. An error of ratchet's own comes out as it is, also when it was
    raised on a worker. Spark may be the first to notice that records are gone, so the topic is looked at again:
    `check_topic` raises what it finds. `private` keeps values out of all that is said. EngineLost is what another try
    can mend, TransformError what it cannot; the latter has a note of the lines of a person's own that led to it.
    """
    package = package_of(transform)
    try:
        with _quiet(private):
            yield
    except RatchetError:
        raise
    except Exception as error:
        own = _own_words(error, private, package)
        told = said(error, private, package)
        if own is not None:
            if isinstance(own, RecordsLost | TopicChanged | UnknownTopic):
                # The driver's own look says it of the whole slice.
                check_topic()
            raise (_noted(own, error, package, private) if isinstance(own, TransformError) else own) from error
        if is_sparks(error):
            silent = _look_again(check_topic)
            if is_of_the_engine(error):
                if silent:
                    raise BrokerUnreachable(
                        f"{where}: {silent}; Spark said: {told}; nothing was voted, the slice is tried again"
                    ) from error
                raise EngineLost(
                    f"{where}: Spark, one of its workers or the connection to it went away: {told}; nothing was "
                    "voted, the slice is tried again"
                ) from error
            why = f"{transform} raised {told}" if _is_of_python(error, package) else f"the job failed: {told}"
        else:
            told = named(error, package) if private else f"{type(error).__name__}: {error}{_place(error, package)}"
            why = f"{transform} raised {told}"
        raise _noted(TransformError(f"{where}: {why}"), error, package, private) from error


def _noted(wrong: TransformError, error: Exception, package: str, private: bool) -> TransformError:
    """The error with a note of the lines that led to it, which is for logs: a message names the innermost alone."""
    lines = listed(_all_frames(error, private), package)
    if lines:
        wrong.add_note(f"in your code, the innermost last:\n{lines}")
    return wrong


@contextmanager
def _quiet(private: bool) -> Iterator[None]:
    """Keep out of this process's logs what PySpark says of a query's error by itself, with all that it quotes.

    It writes some of it to stderr as soon as the error is made. The client of Spark Connect logs each error that it has
    got too, unless nobody has asked for that; setting up logging, as Airflow does, asks for it by accident.
    """
    asked = "SPARK_CONNECT_LOG_LEVEL" in os.environ and not private
    silent = {"SQLQueryContextLogger": private, "DataFrameQueryContextLogger": private, CONNECT_LOGGER: not asked}
    loggers = [PySparkLogger.getLogger(name) for name, whether in silent.items() if whether]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


def is_sparks(error: Exception) -> bool:
    """Whether Spark, or the way to it, raised this, rather than Python code on the driver."""
    from grpc import RpcError

    closed = isinstance(error, ValueError) and "Channel closed" in str(error)
    return closed or isinstance(error, PySparkException | Py4JError | RpcError | ConnectionError)


def is_of_the_engine(error: Exception) -> bool:
    """Whether an error of Spark's says that a server, a worker or the connection is gone.

    Spark gives every error for which the query is to blame a condition, and those that it got from Python their
    traceback; lost executors, crashed workers, exhausted memory and broken connections have neither.
    """
    if isinstance(error, PythonException):
        return _last_raised(error)[0] == "MemoryError"
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    if condition is None:
        return not isinstance(error, _OF_THE_QUERY)
    return condition.partition(".")[0] in _OF_THE_ENGINE


def said(error: Exception, private: bool = False, package: str = "") -> str:
    """The error's text without the stacks that a server or the JVM sends along, and a person's own line that it is of;
    `private`, its condition and that line alone.
    """
    if private:
        return _condition(error, package)
    if _is_of_python(error, package):
        return f"{': '.join(filter(None, _last_raised(error)))}{_place(error, package)}"
    placed = _place(error, package)
    return f"{_CALLED_FROM.sub('', _text(error)) if placed else _text(error)}{placed}"


def _text(error: Exception) -> str:
    text = str(error).partition("JVM stacktrace:")[0]
    grpc_s = _GRPC_DETAILS.search(text)
    if grpc_s:
        return _PLAN.sub("", grpc_s[1])
    lines = (line for line in text.splitlines() if not line.lstrip(" ").startswith("\tat "))
    return _PLAN.sub("", "\n".join(lines).strip())


def _condition(error: Exception, package: str) -> str:
    """What an error is, without its words: those of a library that knows what must be left out are kept."""
    if isinstance(error, PythonException):
        kind, message = _last_raised(error)
        frames = _frames(error)
        if frames and is_of_library(frames[-1][0]):
            return message or kind
        return f"{kind or 'Python raised an error'}{place_of(frames, package)}"
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    return f"{type(error).__name__} {condition}{_place(error, package)}" if condition else type(error).__name__


def _is_of_python(error: Exception, package: str) -> TypeGuard[PythonException]:
    """Whether a person's own Python has raised this on a worker, as a function of a column does."""
    return isinstance(error, PythonException) and bool(_last_raised(error)[0] and own_frames(_frames(error), package))


def _place(error: Exception, package: str) -> str:
    """The line of a person's own that an error is of: on a worker, where it ends one, else on the driver.

    Spark knows which line has made a column; what is asked for later fails elsewhere.
    """
    if isinstance(error, PythonException):
        return place(_frames(error), package)
    return place(_call_sites(error), package) or place(frames_of(error), package)


def _call_sites(error: Exception) -> list[Frame]:
    """Where the columns were made of which Spark has said the error."""
    found: list[Frame] = []
    # A session that is gone cannot be asked any more.
    with suppress(Exception):
        for context in error.getQueryContext() if isinstance(error, PySparkException) else []:
            if context.contextType() == QueryContextType.DataFrame:
                file, _, line = context.callSite().rpartition(":")
                found.append((file, int(line), context.fragment()))
    return found


def _frames(error: PythonException) -> list[Frame]:
    """What ended the worker's Python, the innermost last; not what its words look like, which may be a record's."""
    told = _text(error).rpartition("Traceback (most recent call last):\n")[2]
    words = _RAISED.search(told)
    return _found(told[: words.start("kind")] if words else told)


def _all_frames(error: Exception, private: bool) -> list[Frame]:
    """The driver's frames, then those of the worker; unless private with what had led to its error before, and said."""
    if not isinstance(error, PythonException):
        return [*frames_of(error), *_call_sites(error)]
    return [*frames_of(error), *(_frames(error) if private else _found(_text(error)))]


def _found(text: str) -> list[Frame]:
    return [(file, int(line), function) for file, line, function in _FRAME.findall(text)]


def _own_words(error: Exception, private: bool, package: str) -> RatchetError | None:
    """The error of ratchet's own that was raised on a worker; it arrives as text.

    Of a private pipeline, one that a person's own code has raised is told without its words.
    """
    if not isinstance(error, PythonException):
        return None
    kind, message = _last_raised(error)
    if not kind.startswith(_OWN):
        return None
    if private:
        message = _condition(error, package)
    found = getattr(errors, kind.removeprefix(_OWN), None)
    return found(message or None) if isinstance(found, type) and issubclass(found, RatchetError) else None


def _last_raised(error: PythonException) -> tuple[str, str]:
    """(class, message) of what ended the worker's Python, ("", "") where the text does not say."""
    text = _WORKER_SUFFIX.sub("", _text(error))
    found = _RAISED.search(text.rpartition("Traceback (most recent call last):\n")[2])
    return (found["kind"], found["said"] or "") if found else ("", "")


def _look_again(check_topic: Callable[[], None]) -> BrokerUnreachable | None:
    """What the topic is like now; where Kafka does not answer, its error, as Spark's is closer to other causes."""
    try:
        check_topic()
    except BrokerUnreachable as silent:
        return silent
    return None
