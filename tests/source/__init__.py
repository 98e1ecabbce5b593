"""Sources of records, all held to the same: `conformance` over a broker, `batches` byte by byte."""
