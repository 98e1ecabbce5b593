"""Checks of the ledger's database: the server, its settings, the ledger's schema, rights, clock, and poolers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial

from sqlalchemy import text

from ratchet.ledger import migrations
from ratchet.ledger.connection import BACKEND, Ledger, driver_of, is_direct
from ratchet.operate.doctor.finding import Check, Finding, fault, ok, warning
from ratchet.operate.roles import lacking

SUPPORTED = {16: 14, 17: 10, 18: 4}
"""{major version of PostgreSQL: the first minor one without known security defects}."""
MUST_BE_ON = ("fsync", "full_page_writes", "synchronous_commit")
SKEW_SECONDS = 2.0
"""Clocks that differ by more are not kept by the same time servers."""
FREE = 0.1
"""Of its connections a server should have so many left."""


def checks(ledger: Ledger) -> Iterator[Check]:
    """Those of the database, whatever pipelines there are."""
    yield Check("ledger", partial(_server, ledger))
    for code, look in _LOOKS.items():
        needs = frozenset({"ledger", "ledger-schema"} if code == "rights" else {"ledger"})
        yield Check(code, partial(look, ledger), needs=needs)


def _server(ledger: Ledger) -> Iterator[Finding]:
    with ledger.begin() as conn:
        database, user = conn.execute(text("select current_database(), current_user")).one()
    yield ok("ledger", f"database {database} answers user {user}")


def _version(ledger: Ledger) -> Iterator[Finding]:
    with ledger.begin() as conn:
        number = driver_of(conn).info.server_version
    yield judged_version(number)


def judged_version(number: int) -> Finding:
    """Of a version as libpq has it, 180004 for 18.4."""
    code, (major, minor) = "ledger-version", divmod(number, 10_000)
    said = f"PostgreSQL is {major}.{minor}"
    tried = ", ".join(f"{of}.{first}" for of, first in SUPPORTED.items())
    if major not in SUPPORTED:
        newer = major > max(SUPPORTED)
        if newer:
            return warning(code, f"{said}, with which ratchet is not tried", f"Use one of {tried} or a later minor.")
        return fault(code, f"{said}, for which ratchet is not made", f"Upgrade to one of {tried}, or a later minor.")
    if minor < SUPPORTED[major]:
        return warning(code, f"{said}, which has known security defects", f"Upgrade to {major}.{SUPPORTED[major]}.")
    return ok(code, said)


def _settings(ledger: Ledger) -> Iterator[Finding]:
    asked = "select name, setting from pg_settings where name = any(:names)"
    names = [*MUST_BE_ON, "autovacuum", "lc_messages"]
    with ledger.begin() as conn:
        found = {name: value for name, value in conn.execute(text(asked), {"names": names})}
    yield from judged_settings(found)


def judged_settings(found: Mapping[str, str]) -> Iterator[Finding]:
    """Of {setting: value}, as they are for this role."""
    wrong = False
    for name in MUST_BE_ON:
        if found.get(name) in ("off", "local"):
            wrong = True
            why = "a commit that was told may be lost in a crash"
            yield fault("setting", f"{name} is {found[name]}: {why}", f"Set {name} = on, for the server and this role.")
    if found.get("autovacuum") == "off":
        wrong = True
        why = "autovacuum is off: the index by which an Append finds a transaction's rows is never completed"
        yield warning("setting", why, "Set autovacuum = on.")
    language = found.get("lc_messages", "")
    if language and not language.lower().startswith(("c", "posix", "en")):
        wrong = True
        why = f"lc_messages is {language}: that all connections are in use is told by PostgreSQL's English words only"
        yield warning("setting", why, "Set lc_messages = C, for the server or this role.")
    if not wrong:
        yield ok("setting", f"{', '.join(MUST_BE_ON)} and autovacuum are on")


def _connections(ledger: Ledger) -> Iterator[Finding]:
    asked = text(
        "select count(*) filter (where backend_type = 'client backend'), current_setting('max_connections')::int "
        "from pg_stat_activity"
    )
    with ledger.begin() as conn:
        used, most = conn.execute(asked).one()
    said = f"{used} of {most} connections are in use"
    if used > most * (1 - FREE):
        remedy = "Raise max_connections above Spark's cores plus two for each task that Airflow runs at once."
        yield warning("connections", said, remedy)
    else:
        yield ok("connections", said)


def _schema(ledger: Ledger) -> Iterator[Finding]:
    with ledger.begin() as conn:
        migrations.check(conn)
    yield ok("ledger-schema", f"the ledger's schema is {migrations.REVISION}")


def _rights(ledger: Ledger) -> Iterator[Finding]:
    with ledger.begin() as conn:
        user = conn.execute(text("select current_user")).scalar_one()
        missing = lacking(conn)
    if missing:
        many = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        yield fault(
            "rights",
            f"user {user} lacks {', '.join(missing[:3])}{many}",
            f"As the ledger's owner, run `ratchet migrate --pipeline-role {user}`.",
        )
    else:
        yield ok("rights", f"user {user} may do what runs do")


def _clock(ledger: Ledger) -> Iterator[Finding]:
    with ledger.begin() as conn:
        before = time.time()
        there = conn.execute(text("select extract(epoch from clock_timestamp())")).scalar_one()
        after = time.time()
    yield judged_clock(float(there), before, after)


def judged_clock(there: float, before: float, after: float) -> Finding:
    """Of the ledger's clock, asked between two moments of this machine's."""
    ahead = there - after if there > after else min(0.0, there - before)
    said = f"the ledger's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine's"
    if abs(ahead) > SKEW_SECONDS:
        remedy = "Let both machines keep time by NTP; leases and deadlines go by the ledger's clock."
        return warning("clock", said, remedy)
    return ok("clock", "the ledger's clock and this machine's agree")


def _pooler(ledger: Ledger) -> Iterator[Finding]:
    with ledger.begin() as conn:
        direct = is_direct(driver_of(conn).info, conn.execute(text(BACKEND)).scalar_one())
    if direct:
        yield ok("pooler", "the connection ends at PostgreSQL itself")
        return
    yield warning(
        "pooler",
        "a pooler is between: through it a waiting commit is not told of its turn, and looks every five seconds",
        "Name a connection past it as `direct` in the extra of the ledger's Airflow connection, see docs/server.md.",
    )


_LOOKS = {
    "ledger-version": _version,
    "setting": _settings,
    "connections": _connections,
    "clock": _clock,
    "pooler": _pooler,
    "ledger-schema": _schema,
    "rights": _rights,
}
