"""From exact Kafka ranges to a staged slice and its vote: reader, decoder, stager and the engines that run them.

Imports: errors, ledger, sinks, source, spec.
"""
