"""Python imports this by itself in every process that has this directory on its PYTHONPATH."""

from ratchet_points import hook

hook.watch()
