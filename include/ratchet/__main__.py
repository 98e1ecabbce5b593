"""`python -m ratchet` is the `ratchet` command."""

from ratchet.cli import main

main()
