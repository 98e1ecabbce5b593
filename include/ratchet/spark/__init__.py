"""From exact Kafka ranges to a staged slice and its vote: reader, formats, stager and the engines that run them.

Imports: errors, formats, ledger, logs, sinks, source, spec, transforms, values.
"""
