"""The protocol: plan, begin, claims, leases, deadlines, halts, turns, votes, gates, commit, revision, compaction.

Imports: destinations, errors, ledger, logs, sinks, source, spec, values.
"""
