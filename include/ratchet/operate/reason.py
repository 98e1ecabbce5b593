"""The reason for a person's move, which the history keeps."""

from __future__ import annotations

import re

from ratchet.errors import SettingsError


def reason_given(said: str) -> str:
    """The reason for a move; SettingsError where the history cannot keep it."""
    if not said.strip():
        raise SettingsError("the reason is empty; say why, it is kept in the history")
    if re.search("[\x00\ud800-\udfff]", said):
        raise SettingsError("the reason is no text in UTF-8, or holds U+0000; the history cannot keep it")
    # A command that is pasted as a message shows it has `--reason …`.
    if not any(sign.isalnum() for sign in said):
        raise SettingsError(f"the reason {said.strip()!r} has no words; say why, it is kept in the history")
    return said.strip()
