"""The specs of this checkout: each module here that defines PIPELINE is one pipeline and one DAG."""
