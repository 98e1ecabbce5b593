"""The pipelines of the latency benchmark, chosen by RATCHET_PIPELINES."""
