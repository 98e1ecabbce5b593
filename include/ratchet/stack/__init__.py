"""The embedded servers: Kafka, PostgreSQL, Spark Connect and Airflow, on this machine, without Docker."""
