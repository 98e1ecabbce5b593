"""A server over HTTP to which a collector's client posts."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Take = Callable[[str, bytes], int]
"""Takes a path and a body, and gives the status to answer with."""


@contextmanager
def receiving(take: Take) -> Iterator[str]:
    """Its address, while it takes what is posted."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(take(self.path, gzip.decompress(body) if self._is_packed else body))
            self.end_headers()

        @property
        def _is_packed(self) -> bool:
            return self.headers["Content-Encoding"] == "gzip"

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
