"""The engines: a kept session of a Connect server, or a driver of its own; both run the same job."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ratchet.errors import EngineUnreachable
from ratchet.spark import failure
from ratchet.spark.sessions import Kept
from ratchet.spec.code import library_hash
from ratchet.spec.pipeline import Pipeline
from ratchet.transforms.kinds import Kind, kind_of

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # Sums that overflow and casts that fail must raise, never wrap or become null.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
}

RELEASE_SECONDS = 5
"""So long a server may take to answer that it forgets a session."""

_PATIENCE = {"max_retries": 12, "max_backoff": 5000}
"""A server that does not answer is asked again for about 45 s; Spark's own client would for ten minutes."""


_KEEPALIVE = {
    # The server takes more than one in five minutes for an attack.
    "grpc.keepalive_time_ms": 330_000,
    "grpc.keepalive_timeout_ms": 20_000,
    # Also where this end has long had nothing to say.
    "grpc.http2.max_pings_without_data": 0,
}
"""gRPC's settings by which a server that says nothing any more, but whose connections stand, is found out."""


@contextmanager
def connect_session(url: str, pipeline: str, code_hash: str) -> Iterator[SparkSession]:
    """A session of the Connect server at `url` (`sc://…`) for this block alone, kept for the next one.

    A kept session has warm workers and none of its last job's temporary views; nobody stops it, it expires. One whose
    job did not end well is released, and what it still does on the server ends. This process's connection ends with
    the block in any case: one that is left open would, at exit, try for ten minutes to reach a server that is gone.
    Raises EngineUnreachable when no server answers.
    """
    with Kept(url, pipeline, f"{code_hash} {library_hash()}").lent() as ids:
        session = _open_session(url, pipeline, ids)
        try:
            _drop_views(session)
            yield session
        except BaseException:
            _release(session)
            raise
        finally:
            _leave(session)


@contextmanager
def shared_session(url: str, pipeline: str, code_hash: str) -> Iterator[SparkSession]:
    """A session that all jobs of this code share, also at the same time: for jobs that leave nothing in it.

    Its workers have the code loaded; jobs of other code, of the transform or of this library, have another session.
    Whoever ends a job interrupts its own operations by their tag. Raises EngineUnreachable when no server answers.
    """
    with Kept(url, "", f"{code_hash} {library_hash()}").shared() as ids:
        session = _open_session(url, pipeline, ids)
        try:
            yield session
        finally:
            _leave(session)


def session_for(spec: Pipeline, url: str) -> AbstractContextManager[SparkSession]:
    """The session in which a pipeline's slices are processed, shared where its lane leaves nothing behind."""
    if kind_of(spec) is Kind.FRAMES:
        return connect_session(url, spec.name, spec.code_hash)
    return shared_session(url, spec.name, spec.transform_hash)


def _open_session(url: str, pipeline: str, ids: Iterator[str]) -> SparkSession:
    """The server never opens an id again that was stopped or has expired, so then the next one is taken."""
    # A submitted driver has no use for these.
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.plan import LogicalPlan
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    # The server keeps analysed plans by a number that each client counts from 0: in a session that one process leaves
    # to the next, it would take a plan of the last job for one of this job, with the views that the last one had.
    LogicalPlan._nextPlanId = secrets.randbelow(2**62)
    separator = "" if url.endswith(";") else ";" if "/;" in url else "/;"
    for session in ids:
        # The builder that takes a channel leaves to its caller to say that this process is a client.
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        # Without settings this asks the server nothing yet.
        channel = DefaultChannelBuilder(f"{url}{separator}session_id={session}", list(_KEEPALIVE.items()))
        opened = ConnectSession.builder.channelBuilder(channel).create()
        opened.client.set_retry_policies([DefaultPolicy(**_PATIENCE)])
        try:
            # The first of them is what a closed session refuses.
            for name, value in SETTINGS.items():
                opened.conf.set(name, value)
            return opened
        except PySparkException as error:
            _leave(opened)
            gone = error
            if "INVALID_HANDLE" not in str(error):
                break
    raise EngineUnreachable(
        f"{pipeline}: no session of Spark Connect at {url.partition(';')[0]}: {failure.said(gone)}; "
        "check that the server runs, and takes the connection's password for its token"
    ) from gone


def _drop_views(session: SparkSession) -> None:
    """What a transform has called by a name, the next one must not find: it is of other records."""
    for table in session.catalog.listTables():
        if table.isTemporary:
            session.catalog.dropTempView(table.name)


def _release(session: SparkSession) -> None:
    """Have the server forget the session; one that does not answer will when it expires."""

    def release() -> None:
        with suppress(Exception):
            session.client.release_session()

    asking = threading.Thread(target=release, daemon=True, name=f"release of {session.session_id}")
    asking.start()
    asking.join(RELEASE_SECONDS)


def _leave(session: SparkSession) -> None:
    """Close this end of the session, and forget it as the active one, which F.udf and others look for."""
    session.release_session_on_close = False
    session.stop()


def driver_session(name: str, *, quiet: bool = False) -> SparkSession:
    """A session of this driver's own, for an application that was submitted; EngineUnreachable if none is to be had.

    A `quiet` one's own log, which quotes whatever a task has raised, goes nowhere.
    """
    builder = SparkSession.builder.appName(name)
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    if quiet:
        builder = builder.config("spark.log.level", "OFF")
    try:
        return builder.getOrCreate()
    except (Py4JError, PySparkException) as error:
        # The master has said nothing for a minute, mostly.
        why = " ".join(failure.said(error).partition("\n\n")[0].split())
        raise EngineUnreachable(f"{name}: no session of Spark: {why}; check that the master runs") from error
