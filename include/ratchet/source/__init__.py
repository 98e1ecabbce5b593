"""Kafka without Spark: what a topic holds, how many records a range has, and offsets for monitoring tools.

Imports: errors, ledger.
"""
