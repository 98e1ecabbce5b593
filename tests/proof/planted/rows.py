"""Mistakes in what becomes of rows between their writer and their reader."""

from __future__ import annotations

from tests.proof.planted.plant import plant

PLANTS = [
    plant(
        "a vote names a writer of another try",
        "protocol/votes.py",
        "        if of != token.numbers or writer.sink != sink:",
        "        if False:",
    ),
    plant(
        "all rows of a transaction are taken instead of those of the writers that the votes name",
        "sinks/delta.py",
        "    return of.c._txid == rows.txid, of.c._writer == sa.any_(_bigints(rows.writers))",
        "    return (of.c._txid == rows.txid,)",
    ),
    plant(
        "a writer that no vote names is left below the head",
        "protocol/leftovers.py",
        "    return tuple(left)",
        "    return ()",
    ),
    plant(
        "leftovers are not looked for under the commit lock",
        "protocol/commit.py",
        "        if leftovers.under(conn, row):",
        "        if False:",
    ),
    plant(
        "a void leaves its rows below the head",
        "protocol/leftovers.py",
        "    left = WriterRow.all(",
        "    if row.state == State.VOIDED:\n        return ()\n    left = WriterRow.all(",
    ),
    plant(
        "rows above the head are seen",
        "sinks/views.py",
        '"where d._txid + 0 <= (select txid from {heads} where pipeline = {pipeline})"',
        '"where d._txid + 0 <= (select txid + 1 from {heads} where pipeline = {pipeline})"',
    ),
    plant(
        "dead letters above the head are seen",
        "ledger/migrations/versions/0001_ledger.sql",
        "WHERE d._txid <= h.txid;",
        "WHERE d._txid >= 0;",
    ),
    plant(
        "a revision's rows are written under its txid before its commit",
        "sinks/stage.py",
        "    return row.revision > 0 or sink.stages",
        "    return sink.stages",
    ),
    plant(
        "a row is doubled across two writers",
        "protocol/votes.py",
        "    if len(spans) < len(told) or not are_apart(spans):",
        "    if len(spans) < len(told):",
    ),
    plant(
        "keys are folded anew from rows above the head too",
        "sinks/keyed.py",
        "select(deltas).join(wanted, same_key).where(deltas.c._txid <= head)",
        "select(deltas).join(wanted, same_key)",
    ),
    plant(
        "the last rows of keys are looked for above the head too",
        "sinks/upsert.py",
        "last = self._last(same_key, txid_of_key(self.delta) <= head)",
        "last = self._last(same_key)",
    ),
    plant(
        "a revision misses what was committed after it had folded its keys",
        "sinks/keyed.py",
        "        if head > left.head:",
        "        if False:",
    ),
    plant(
        "a try of a ledger that was restored passes for that of the same numbers",
        "ledger/fence.py",
        "    if current.nonce != token.nonce:",
        "    if False:",
    ),
    plant(
        "a vote on other ranges than the slice's is taken",
        "protocol/votes.py",
        "        _check_ranges(current, token, vote)\n",
        "",
    ),
    plant(
        "what was prepared with other code is folded by this one",
        "protocol/commit.py",
        "    if row.code_hash != spec.code_hash:\n        raise OtherCode",
        "    if False:\n        raise OtherCode",
        (
            "protocol/commit.py",
            " and row.halted_at is None and row.code_hash == spec.code_hash",
            " and row.halted_at is None",
        ),
    ),
    plant(
        "rows expire whatever their age",
        "protocol/expire.py",
        "    until = old_until(conn, line, after, sink.expires_after)",
        "    until = line.head",
    ),
    plant(
        "a revision leaves the older rows in a table of the user's own",
        "sinks/copied.py",
        "            conn.execute(delete(self.target).where(self.target.c._txid == of.txid))\n",
        "            pass\n",
    ),
    plant(
        "a view stays without the columns that are added",
        "sinks/tables.py",
        "        views.create(conn, pipeline, sink, list(shown))",
        "        if not shown:\n            views.create(conn, pipeline, sink, list(shown))",
    ),
    plant(
        "what a vote names is not looked for",
        "protocol/votes.py",
        "        fault = _writers_fault(said, sink.name, token, found) or "
        "_rows_fault(conn, sink, rows[sink.name], vote, found)",
        "        fault = None",
    ),
    plant(
        "what has expired is revised",
        "protocol/revise.py",
        "    if txid <= expired:",
        "    if False:",
    ),
    plant(
        "a release takes the older rows of an Append away",
        "sinks/kept.py",
        "        if of.release is not None:\n            return\n",
        "",
    ),
    plant(
        "the dead letters that a release takes stay",
        "sinks/dead_letters.py",
        "        conn.execute(delete(self.rows_table).where(*which))\n",
        "",
    ),
    plant(
        "what a release has taken is not counted",
        "protocol/applied.py",
        "        if taken:",
        "        if False:",
    ),
    plant(
        "a release adds to a delta that somebody has changed",
        "sinks/keyed.py",
        "            self._check_before(conn, of, of.release.before)",
        "            pass",
        layers=("ledger",),
    ),
    plant(
        "rows of other records than its dead letters come in by a release",
        "protocol/votes.py",
        "            fault = delta.beside_letters(conn, sink, rows[sink.name], "
        "letters.taken(row.pipeline, row.txid, errors))",
        "            fault = None",
        layers=("ledger",),
    ),
    plant(
        "a replay that waits gives way to a release",
        "protocol/replays.py",
        "where=or_(replays.c.given_up.is_not(None), asks_all & is_other)",
        "where=or_(replays.c.given_up.is_not(None), is_other)",
        layers=("ledger",),
    ),
    plant(
        "a gate divides by the records of a transaction that has none",
        "protocol/gate_kinds.py",
        "        ratio = dead / of.records if of.records else 0.0",
        "        ratio = dead / of.records",
    ),
    plant(
        "a deletion deletes what has a greater order",
        "sinks/upsert.py",
        "        goes = [_is_later(into.c[self.order], merged.c[self.order])] if self.order else []",
        "        goes = []",
    ),
    plant(
        "a revision does not look at keys that it has no more",
        "sinks/upsert.py",
        "            before = self._last(same_key, txid.between(of.since, of.txid))",
        "            before = self._last(same_key, txid == of.txid)",
    ),
    plant(
        "what was deleted comes back with a record of a lesser order",
        "sinks/upsert.py",
        "            living = self._not_deleted_later(living, merged, self.order, of.txid)",
        "            pass",
    ),
    plant(
        "a compaction forgets deletions that have an order",
        "sinks/upsert.py",
        "        return kept if self.order else kept.where(~reduced.c._deleted)",
        "        return kept.where(~reduced.c._deleted)",
    ),
    plant(
        "rows in a table of one's own name the first topic of the line",
        "sinks/copied.py",
        "    if len(topics) == 1:\n",
        "    if topics:\n",
    ),
]
