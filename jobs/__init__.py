"""The transforms of this checkout, and the application that spark-submit runs."""
