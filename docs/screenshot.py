"""Take the README's picture of the demo that runs, by Debian's Chromium: `python docs/screenshot.py [--url URL]`.

Waits until the page has drawn what it loads: Airflow's UI fetches its runs only after the page itself is there.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from urllib.request import urlopen

from websockets.sync.client import ClientConnection, connect

HERE = Path(__file__).resolve().parent
SIZE = (1440, 900)
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--lang=en-US",
    "--remote-debugging-port=0",
)
LAYOUT = {
    # The grid's part of the page in percent, and how many runs it shows; Airflow's UI keeps both in the browser.
    "react-resizable-panels:grid-ltr": json.dumps(
        {"details-panel,main-panel": {"expandToSizes": {}, "layout": [48, 52]}}
    ),
    "dag_runs_limit-flights": "25",
}
REMEMBER = f"for (const [name, value] of Object.entries({json.dumps(LAYOUT)})) localStorage.setItem(name, value)"
START_SECONDS, DRAW_SECONDS = 30, 60
STILL = 5
"""How many looks, half a second apart, the page must keep its elements before it counts as drawn."""


class Page:
    """One browser page, driven over the remote debugging protocol."""

    def __init__(self, socket: ClientConnection):
        self._socket, self._numbers = socket, count(1)

    def call(self, method: str, **params: object) -> dict:
        """Send one command and return its result; RuntimeError with the browser's words when it fails."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            said = json.loads(self._socket.recv(timeout=DRAW_SECONDS))
            if said.get("id") != number:
                continue
            if "error" in said:
                raise RuntimeError(f"{method}: {said['error']['message']}")
            return said["result"]

    def value(self, expression: str) -> object:
        """What a JavaScript expression gives in the page; a promise is waited for."""
        said = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return said["result"].get("value")


def wait_until_drawn(page: Page, wanted: str) -> None:
    """Return when the text `wanted` is on the page and no element has come or gone for a while."""
    deadline, seen, still = time.monotonic() + DRAW_SECONDS, None, 0
    while still < STILL:
        if time.monotonic() > deadline:
            shown = str(page.value("document.body ? document.body.innerText.slice(0, 300) : ''"))
            raise SystemExit(f"screenshot: {wanted!r} did not appear within {DRAW_SECONDS} s; the page says: {shown}")
        time.sleep(0.5)
        now = page.value("document.body ? [document.body.innerText, document.querySelectorAll('*').length] : null")
        # Elements, not text: a clock on the page must not keep it from being drawn.
        still = still + 1 if now and wanted in now[0] and now[1] == seen else 0
        seen = now and now[1]


def debugger_address(profile: Path, browser: subprocess.Popen) -> str:
    """The address of the browser's first page, once it listens."""
    port_file, deadline = profile / "DevToolsActivePort", time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and browser.poll() is None:
        if port_file.exists() and (said := port_file.read_text().split()):
            with urlopen(f"http://127.0.0.1:{said[0]}/json/list", timeout=10) as answer:
                for target in json.load(answer):
                    if target["type"] == "page":
                        return target["webSocketDebuggerUrl"]
        time.sleep(0.1)
    raise SystemExit(f"screenshot: Chromium did not start within {START_SECONDS} s; its exit status: {browser.poll()}")


def take(chromium: str, url: str, wanted: str, into: Path) -> None:
    """Open the page, wait until it is drawn, write the picture."""
    with tempfile.TemporaryDirectory(prefix="ratchet-screenshot-", ignore_cleanup_errors=True) as profile:
        size = f"--window-size={SIZE[0]},{SIZE[1]}"
        command = [chromium, *OPTIONS, size, f"--user-data-dir={profile}", "about:blank"]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            # No limit on a message: a picture is larger than the default one.
            with connect(debugger_address(Path(profile), browser), max_size=None, proxy=None) as socket:
                page = Page(socket)
                width, height = SIZE
                page.call(
                    "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
                )
                page.call("Page.enable")
                page.call("Page.addScriptToEvaluateOnNewDocument", source=REMEMBER)
                page.call("Page.navigate", url=url)
                wait_until_drawn(page, wanted)
                into.write_bytes(base64.b64decode(page.call("Page.captureScreenshot", format="png")["data"]))
        finally:
            browser.terminate()
            browser.wait(timeout=20)


def demo_page() -> str:
    """The page of the demo's DAG, on the port that the demo's stack has chosen."""
    ports = HERE.parent / ".state" / "demo" / "ports.json"
    port = os.environ.get("RATCHET_PORT_AIRFLOW") or (json.loads(ports.read_text())["airflow"] if ports.exists() else 0)
    page = f"http://127.0.0.1:{port}/dags/flights"
    try:
        urlopen(page, timeout=10).close()
    except OSError:
        sys.exit("screenshot: the demo does not run; start it with `make demo` in another terminal")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", help="another page than that of the demo's DAG `flights`")
    parser.add_argument("--into", type=Path, default=HERE / "grid.png")
    parser.add_argument("--wait-for", default="flights", help="a text that is on the page once it is drawn")
    said = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("screenshot: there is no Chromium; install it with `apt-get install chromium`")
    take(chromium, said.url or demo_page(), said.wait_for, said.into)
    print(f"{said.into}: {said.into.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
