"""For development and trial: the embedded servers and the demo.

Imports: everything.
"""
