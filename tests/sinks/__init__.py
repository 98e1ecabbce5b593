"""The suite that every sink keeps to, and a sink that is no part of the package."""
