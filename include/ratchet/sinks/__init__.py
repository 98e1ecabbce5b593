"""What each sink stages, keeps and folds.

Imports: errors, ledger, spec, values.
"""
