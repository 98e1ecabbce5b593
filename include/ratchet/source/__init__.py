"""Kafka without Spark: what a topic holds, exact ranges as Arrow columns, and offsets for monitoring tools.

Imports: errors, ledger, values.
"""
