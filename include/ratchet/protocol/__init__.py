"""The protocol: plan, begin, claims, votes, gates, commit, revision, compaction.

Imports: errors, ledger, logs, sinks, source, spec.
"""
