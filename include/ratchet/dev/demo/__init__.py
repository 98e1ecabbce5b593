"""The demo: real flights through a real pipeline, held against pandas; `python -m ratchet.dev.demo`."""
