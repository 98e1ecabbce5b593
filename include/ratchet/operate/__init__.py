"""What operators do and see: moves, status, verify, migrations, roles, upkeep.

Imports: destinations, errors, formats, ledger, protocol, sinks, source, spec, values.
"""
