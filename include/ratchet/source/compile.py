"""`python -m ratchet.source.compile`: compile what the columnar source runs, so that no worker waits for it.

The machine code goes beside the module, or into NUMBA_CACHE_DIR; it is made again when the module, numba or the kind of
processor changes.
"""

from __future__ import annotations


def compile_source() -> None:
    """Compile what is not compiled yet."""
    # Importing it is all: the signatures are stated, so nothing waits for a first call.
    import ratchet.source.records  # pyright: ignore[reportUnusedImport]  # noqa: F401


if __name__ == "__main__":
    compile_source()
