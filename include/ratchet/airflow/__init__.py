"""What Airflow sees: the DAG factory, the tasks of a run, and the trigger that waits for a turn.

Imports: everything but cli and dev.
"""
