"""The spec of the protocol's tests, for the command, chosen by RATCHET_PIPELINES."""
