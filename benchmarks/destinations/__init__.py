"""The pipelines of `benchmarks/outside.py`, chosen by RATCHET_PIPELINES: one for each kind of destination."""
