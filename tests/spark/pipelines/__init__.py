"""Specs for processes that the tests start: submitted drivers and the command; chosen by RATCHET_PIPELINES."""
