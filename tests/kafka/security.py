"""What tests of a broker behind TLS and a login share: certificates, a password, and how a refusal is looked at."""

from __future__ import annotations

import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.errors import BrokerUnreachable, SettingsError

PASSWORD = 's3cret-"of\\ann'
"""With what JAAS and a properties file must escape."""


def certificates(directory: Path) -> Path:
    """authority.pem, identity.pem (key and certificate for 127.0.0.1), and stranger.pem, which signed nothing."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    directory.mkdir()
    for name in ("authority", "stranger"):
        made = ("-keyout", f"{name}.key", "-out", f"{name}.pem")
        openssl("req", "-x509", "-newkey", "rsa:2048", "-noenc", "-days", "2", "-subj", f"/CN={name}", *made)
    openssl("req", "-newkey", "rsa:2048", "-noenc", "-subj", "/CN=broker", "-keyout", "broker.key", "-out", "asked")
    (directory / "names").write_text("subjectAltName=IP:127.0.0.1")
    signed = ("-CA", "authority.pem", "-CAkey", "authority.key", "-CAcreateserial", "-extfile", "names")
    openssl("x509", "-req", "-in", "asked", *signed, "-days", "2", "-out", "broker.pem")
    identity = directory / "identity.pem"
    identity.touch(mode=0o600)
    identity.write_text((directory / "broker.key").read_text() + (directory / "broker.pem").read_text())
    return directory


def refused(ask: Callable[[dict[str, str]], object], properties: dict[str, str], caplog) -> str:
    """What a client says that asks by these properties and is not let in, which shows no password anywhere."""
    with pytest.raises((SettingsError, BrokerUnreachable)) as raised:
        ask(properties)
    shown = "".join(traceback.format_exception(raised.value)) + caplog.text
    assert not any(secret in shown for secret in ("s3cret", "wrong-word"))
    return f"{raised.type.__name__}: {raised.value}"
