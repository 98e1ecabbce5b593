"""Where the rows of sinks go outside of the ledger's database: what is declared of each kind, and how it is written.

Imports: errors, formats, ledger, sinks, source, spec, values.
"""
