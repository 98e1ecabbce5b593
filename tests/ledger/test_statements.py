"""What is compiled of a statement is compiled once for all ledgers of a process, and only where they understand it."""

from sqlalchemy import literal, select

from ratchet.ledger.connection import Ledger


def asked(ledger: Ledger, number: int):
    """The compiled form of a statement, and its answer."""
    with ledger.begin() as conn:
        found = conn.execute(select(literal(number).label("of_this_test_alone")))
        return found.context.compiled, found.scalar_one()


def test_a_statement_is_compiled_once_for_the_ledgers_of_a_process(databases):
    with databases.made() as first, databases.made() as second, Ledger(first) as one, Ledger(second) as other:
        compiled, answer = asked(one, 1)
        again, other_answer = asked(other, 2)
        assert again is compiled and (answer, other_answer) == (1, 2)
        with one.snapshot() as conn:
            found = conn.execute(select(literal(3).label("of_this_test_alone")))
            assert found.context.compiled is compiled and found.scalar_one() == 3


def test_servers_that_read_sql_differently_have_no_statement_in_common(databases):
    with databases.made() as url, Ledger(url) as one, Ledger(url, "other") as older, Ledger(url, "third") as escaping:
        compiled, _ = asked(one, 1)
        for ledger in (older, escaping):
            assert asked(ledger, 1)[0] is compiled
        older.engine.dialect.server_version_info = (9, 1)
        escaping.engine.dialect._backslash_escapes = True
        assert asked(older, 1)[0] is not compiled and asked(escaping, 1)[0] is not compiled
        assert asked(one, 1)[0] is compiled
