"""What a person sees of pipelines: read-only values of one snapshot of the ledger, for command, page and metrics."""
