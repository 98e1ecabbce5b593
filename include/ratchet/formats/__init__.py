"""What a message says: from the bytes of values to declared columns, as Arrow; neither Kafka nor Spark is needed.

Imports: errors, spec, values.
"""
