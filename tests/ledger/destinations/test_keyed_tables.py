"""What a table in another database, a Delta Lake table and an Iceberg table must be to have rows by key."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable, TableFeatures

from ratchet.errors import DestinationRefused
from ratchet.operate.destinations import How, attach
from ratchet.operate.migrate import migrate
from ratchet.protocol.follow import follow

from .keyed_places import KINDS, Keyed, Place, row

COLUMNS = "k text, a bigint, _partition int, _offset bigint, _txid bigint"


@pytest.fixture
def in_table(bare, elsewhere, log, tmp_path) -> Keyed:
    return Keyed.made(bare, Place.of("table", elsewhere, tmp_path), log)


@pytest.fixture(params=KINDS)
def keyed(request, bare, elsewhere, log, tmp_path) -> Keyed:
    return Keyed.made(bare, Place.of(request.param, elsewhere, tmp_path), log)


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ("", "has no unique index of k alone; nothing was sent"),
        ("create unique index on latest_there (k, a)", "has no unique index of k alone"),
        ("create unique index on latest_there (k) where a > 0", "has no unique index of k alone"),
        ("create unique index on latest_there (lower(k))", "has no unique index of k alone"),
        ("alter table latest_there add unique (k) deferrable", "has no unique index of k alone"),
        (
            # The server of the tests has no ICU, by which such a collation would be made.
            'create collation unlike from "C"; update pg_collation set collisdeterministic = false where collname = '
            "'unlike'; create unique index on latest_there (k);"
            "update pg_attribute set attcollation = 'unlike'::regcollation where attrelid = 'latest_there'::regclass "
            "and attname = 'k'",
            "column k has a collation by which unlike texts are the same key",
        ),
        (
            "create unique index on latest_there (k); create function nothing() returns trigger language plpgsql as "
            "'begin return null; end'; create trigger nothing before insert on latest_there for each row execute "
            "function nothing()",
            "PostgreSQL has kept 0 of 2 rows; a trigger on the table must leave them alone, and a row of your own",
        ),
        (
            "create unique index on latest_there (k); insert into latest_there values ('y', 7)",
            "PostgreSQL has kept 1 of 2 rows; .* a row of your own, without a _txid, must not have a key of theirs",
        ),
    ],
)
def test_a_table_in_which_rows_of_keys_do_not_give_way_is_refused(in_table, elsewhere, there, said):
    elsewhere.ask(f"create table latest_there ({COLUMNS}); {there}")
    with pytest.raises(DestinationRefused, match=said):
        in_table.run("a", {0: row("x"), 1: row("y")})
    assert in_table.there() == ([("y", 7, None)] if "insert into" in there else [])


@pytest.mark.invariant("I1")
def test_a_table_of_ones_own_with_more_columns_in_its_index_and_rows_without_a_txid_is_taken(in_table, elsewhere):
    elsewhere.ask(f"create table latest_there ({COLUMNS}, mine text default 'm')")
    elsewhere.ask("insert into latest_there values ('own', 7)")
    elsewhere.ask("create unique index on latest_there (k) include (a)")
    in_table.run("a", {0: row("x", 1), 1: row("y", 2)})
    in_table.run("b", {0: row("x", 3), 1: row("y", 4, gone=True)})
    assert in_table.there() == [("own", 7, None), ("x", 3, 2)]
    assert elsewhere.ask("select distinct mine from latest_there") == [("m",)]
    attach(in_table.ledger, in_table.spec, in_table.address, How.ANEW, "for the test", "me", in_table.opens)
    assert in_table.there() == [("own", 7, None), ("x", 3, 2)]


@pytest.mark.invariant("I1")
def test_a_column_that_is_gained_is_added_there_and_an_older_process_sends_it_too(keyed):
    keyed.run("a", {0: row("x", 1), 1: row("y", 1)})
    wider = keyed.with_spec(columns="a bigint, b string")
    migrate(keyed.ledger.url, [wider.spec])
    wider.decided("b", {0: row("x", 2, b="now")})
    follow(keyed.ledger, keyed.spec, keyed.opens)
    wider.names = (*keyed.names, "b")
    assert wider.there() == [("x", 2, 2, "now"), ("y", 1, 1, None)] == wider.state()
    wider.run("c", {0: row("y", 3, b="")})
    wider.is_whole()


@pytest.mark.invariant("I1")
def test_columns_are_told_apart_whatever_their_case(bare, elsewhere, log, tmp_path):
    keyed = Keyed.made(bare, Place.of("delta", elsewhere, tmp_path), log, columns="a bigint, At string")
    keyed.names = ("k", "a", "_txid", '"At"')
    keyed.run("a", {0: row("x", 1, At="é"), 1: row("y", 1, At="`")})
    keyed.run("b", {0: row("x", 2, At="b"), 1: row("y", 2, gone=True, At=None)})
    here = keyed.state()
    assert keyed.place.rows(["k", "a", "_txid", "At"]) == here == [("x", 2, 2, "b")]


def test_a_lake_with_what_is_not_tried_for_keys_is_refused(bare, elsewhere, log, tmp_path):
    keyed = Keyed.made(bare, Place.of("delta", elsewhere, tmp_path), log)
    keyed.run("a", {0: row("x", 1)})
    DeltaTable(keyed.place.to.name).alter.add_feature(
        TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    with pytest.raises(DestinationRefused, match="has deletionVectors, with which it is not tried whether rows"):
        keyed.run("b", {0: row("x", 2)})
