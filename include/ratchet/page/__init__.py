"""The Transactions page's server: what it shows and the operator's moves, by Airflow's users and permissions.

Imports: airflow, errors, ledger, operate, source, spec, values.
"""
