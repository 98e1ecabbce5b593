"""The ledger's database: its connection, tables, rows, states and history.

Imports: errors.
"""
