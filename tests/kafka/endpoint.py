"""A token endpoint, as an identity provider has one: tokens for a client's id and secret, which a broker can check."""

from __future__ import annotations

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

AUDIENCE = "kafka"


class Identity:
    """Issues tokens for {client id: secret}, each good for `lasts` seconds; use it as a context manager.

    `keys` is the file by which a broker knows that they are its own.
    """

    def __init__(self, keys: Path, clients: dict[str, str], lasts: int = 300):
        self.keys, self.clients, self.lasts = keys, clients, lasts
        self.issued: list[dict[str, list[str]]] = []
        """What each token was asked for with."""
        self.broken: int | None = None
        """What it answers instead of a token."""
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key()))
        keys.write_text(json.dumps({"keys": [{**public, "kid": "1", "use": "sig", "alg": "RS256"}]}))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())

    @property
    def url(self) -> str:
        """Where tokens are."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/token"

    def __enter__(self) -> Identity:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, login: str, form: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        if self.broken:
            return self.broken, {}
        name, _, secret = base64.b64decode(login.removeprefix("Basic ")).decode().partition(":")
        if self.clients.get(name) != secret:
            return 401, {"error": "invalid_client", "error_description": "no such client"}
        self.issued.append(form)
        now = int(time.time())
        claims = {
            "sub": name,
            "aud": AUDIENCE,
            "iat": now,
            "exp": now + self.lasts,
            # Brokers want one, whichever.
            "scope": form.get("scope", ["any"])[0],
        }
        token = jwt.encode(claims, self._key, "RS256", {"kid": "1"})
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": self.lasts}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        identity = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                status, said = identity._answer(self.headers.get("Authorization", ""), form)
                content = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

        return Handler
