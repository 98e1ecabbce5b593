"""What users declare: a pipeline, its columns and their types; how specs are loaded, and the hash of their code.

Imports: errors.
"""
