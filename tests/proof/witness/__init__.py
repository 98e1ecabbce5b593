"""The witness: a topic as another reader has it, held against the sinks and dead letters; nothing is the product's."""
