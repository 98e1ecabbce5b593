"""Measures and traces of all lines, read from the ledger by a process of its own, for Prometheus and OpenTelemetry.

Imports: errors, ledger, logs, operate, source.
"""
