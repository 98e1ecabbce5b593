"""Measures, traces and lineage of all lines, read from the ledger by a process of its own, for monitoring.

Imports: destinations, errors, ledger, logs, operate, source, spec.
"""
