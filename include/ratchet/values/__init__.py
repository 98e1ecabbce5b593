"""What values of the declared types are, whatever they are read from or kept in: moments, UUIDs, documents.

Imports: errors, spec.
"""
