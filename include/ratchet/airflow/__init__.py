"""What Airflow sees: the DAG factory, the tasks of a run, and the trigger that waits for a turn.

Imports: destinations, errors, ledger, logs, operate, protocol, sinks, source, spark, spec, values.
"""
