"""S3Proxy on this machine, an object store in memory with the interface of Amazon S3; fetched by `make test`."""

from __future__ import annotations

import hashlib
import hmac
import re
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Self
from urllib.parse import quote, urlsplit
from uuid import uuid4

import requests
from requests.auth import AuthBase

from ratchet.destinations.object_store import options_of
from ratchet.dev.stack import CHECKOUT
from ratchet.dev.stack.ports import HOST, Ports
from ratchet.dev.stack.prerequisites import java
from ratchet.dev.stack.server import Server, end

JARS = CHECKOUT / ".jars" / "store"
IS_THERE = (JARS / ".installed").exists()
LOGIN, PASSWORD = "a-key-id", "canary-secret"
_LOGGING = """
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %level %logger{20} %msg%n</pattern></encoder>
  </appender>
  <root level="info"><appender-ref ref="out"/></root>
</configuration>
"""


class S3Proxy:
    """A store whose buckets are gone when it ends; a context manager."""

    def __init__(self, home: Path):
        home.mkdir(parents=True, exist_ok=True)
        self.url = f"http://{HOST}:{Ports(home / 'ports.json', print).get('store')}"
        given = {
            "s3proxy.authorization": "aws-v4",
            "s3proxy.identity": LOGIN,
            "s3proxy.credential": PASSWORD,
            "s3proxy.endpoint": self.url,
            "jclouds.provider": "transient-nio2",
        }
        (home / "logback.xml").write_text(_LOGGING)
        (home / "properties").write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        # It starts in half of the time, and with few threads.
        quick = ["-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        logged = f"-Dlogback.configurationFile={home / 'logback.xml'}"
        command = [str(java()), *quick, logged, "-cp", f"{JARS}/*", "org.gaul.s3proxy.Main"]
        self._server = Server(
            "store", [*command, "--properties", str(home / "properties")], home / "log", self._is_ready
        )

    def __enter__(self) -> Self:
        self._server.start()
        deadline = time.monotonic() + 60
        while not self._server.ready():
            assert not self._server.ended and time.monotonic() < deadline, self._server.last_lines()
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        end(self._server.family(), signal.SIGKILL, patience=0)

    def bucket(self) -> Bucket:
        """A new one, empty."""
        made = Bucket(self.url, f"bucket-{uuid4().hex[:12]}")
        made.ask("PUT")
        return made

    def _is_ready(self) -> bool:
        try:
            return requests.get(self.url, timeout=2).status_code == 403
        except requests.RequestException:
            return False


class Bucket:
    """A bucket, and raw requests to it."""

    def __init__(self, url: str, name: str):
        self.endpoint, self.name = url, name

    def options(self, endpoint: str | None = None, login: str = LOGIN, password: str = PASSWORD) -> dict[str, str]:
        """By which a destination reaches it, perhaps by way of a proxy."""
        return options_of("the test's connection", endpoint or self.endpoint, login, password, {})

    def ask(self, method: str, key: str = "", data: bytes = b"", query: str = "", **headers: str) -> requests.Response:
        """The answer to a request about an object, or the bucket itself."""
        url = f"{self.endpoint}/{self.name}{'/' if key else ''}{quote(key)}{'?' if query else ''}{query}"
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        return requests.request(method, url, data=data, headers=said, auth=_Signed(), timeout=60)

    def keys(self, below: str = "") -> list[str]:
        """What it has, sorted."""
        found, after = [], ""
        while True:
            query = f"list-type=2&prefix={quote(below, safe='')}&start-after={quote(after, safe='')}"
            answer = self.ask("GET", query=query)
            assert answer.ok, answer.text
            page = re.findall("<Key>([^<]*)</Key>", answer.text)
            if not page:
                return sorted(found)
            found, after = [*found, *page], page[-1]

    def copy(self, place: str, other: str) -> None:
        """Have all objects below one place below another one too."""
        for key in self.keys(f"{place}/"):
            self.ask("PUT", other + key.removeprefix(place), self.ask("GET", key).content)

    def empty(self, place: str) -> None:
        """Delete all objects below a place."""
        for key in self.keys(f"{place}/"):
            self.ask("DELETE", key)

    def uploads(self) -> list[str]:
        """The keys of multipart uploads that were begun and neither completed nor aborted."""
        answer = self.ask("GET", query="uploads=")
        assert answer.ok, answer.text
        return re.findall("<Upload>.*?<Key>([^<]*)</Key>", answer.text, re.DOTALL)


class _Signed(AuthBase):
    """Amazon's signature, version 4."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        url, body = urlsplit(str(request.url)), request.body or b""
        content = hashlib.sha256(body if isinstance(body, bytes) else body.encode()).hexdigest()
        signed = {"host": url.netloc, "x-amz-content-sha256": content, "x-amz-date": moment}
        request.headers.update({name: value for name, value in signed.items() if name != "host"})
        query = "&".join(sorted(url.query.split("&")))
        lines = [str(request.method), url.path, query, *(f"{n}:{v}" for n, v in signed.items())]
        canonical = "\n".join([*lines, "", ";".join(signed), content])
        scope = f"{moment[:8]}/us-east-1/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        key = f"AWS4{PASSWORD}".encode()
        for part in scope.split("/"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        proof = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        names = ";".join(signed)
        request.headers["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={LOGIN}/{scope}, SignedHeaders={names}, Signature={proof}"
        )
        return request
