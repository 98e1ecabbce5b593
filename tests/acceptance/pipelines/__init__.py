"""The specs of the acceptance tests, chosen by RATCHET_PIPELINES."""
