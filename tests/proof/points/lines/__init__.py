"""The pipelines whose processes are killed, chosen by RATCHET_PIPELINES; each module is one of them."""
