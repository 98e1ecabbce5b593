"""The files of the docs that are made from the code: commands and their answers, specs, error codes, metrics.

Imports: answers, cli, explained, ratchet, spec, telemetry.
"""
