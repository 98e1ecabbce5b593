"""A directory for PYTHONPATH: Python itself imports `sitecustomize` from it when a process starts."""
