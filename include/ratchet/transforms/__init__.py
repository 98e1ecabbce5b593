"""Transforms: what becomes of decoded records, by name alone, by a function over Arrow tables or over DataFrames.

Imports: errors, sinks, spec.
"""
