"""For development and trial: the embedded servers and the demo.

Imports: errors, ledger, operate, sinks, source, spark, spec.
"""
