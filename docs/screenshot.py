"""Take the pictures of the docs from a demo that runs, by Debian's Chromium: `python docs/screenshot.py [NAME…]`.

Without names those that the demo gives by itself; the others are taken where the tutorial shows them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).resolve().parent
DRAW_MILLISECONDS = 60_000
STILL = """() => {
    const now = document.querySelectorAll("*").length;
    window.looks = now === window.seen ? (window.looks ?? 0) + 1 : 0;
    window.seen = now;
    return window.looks >= 5;
}"""
"""Whether the page has kept its elements for five looks; a clock on the page may change its text all the time."""
LAYOUT = {
    # The grid's part of the page in percent, and how many runs it shows; Airflow's UI keeps both in the browser.
    "react-resizable-panels:grid-ltr": json.dumps(
        {"details-panel,main-panel": {"expandToSizes": {}, "layout": [48, 52]}}
    ),
    "dag_runs_limit-flights": "25",
}
REMEMBER = f"for (const [name, value] of Object.entries({json.dumps(LAYOUT)})) localStorage.setItem(name, value)"


@dataclass(frozen=True)
class Picture:
    """A page of the demo's Airflow, and a text that is on it once it is drawn."""

    path: str
    wanted: str
    file: str
    size: tuple[int, int] = (1280, 720)


PICTURES = {
    "grid": Picture("dags/flights", "flights", "grid.png", (1440, 900)),
    "pipelines": Picture("plugin/transactions", "Transactions", "pictures/pipelines.png", (1280, 350)),
    "pipeline": Picture("ratchet/#/flights", "delay_by_carrier_month", "pictures/pipeline.png", (1280, 900)),
    "halted": Picture("ratchet/#/payments", "halted", "pictures/halted.png", (1280, 720)),
    "letters": Picture("ratchet/#/payments/letters", "no rate for GBP", "pictures/letters.png", (1280, 480)),
}
BY_ITSELF = ("grid", "pipeline")


def take(page: Page, url: str, of: Picture) -> None:
    """Open the page, wait until it is drawn, write the picture."""
    width, height = of.size
    page.set_viewport_size({"width": width, "height": height})
    # The pages of one server differ in what stands behind #, which alone loads nothing.
    page.goto("about:blank")
    page.goto(f"{url}/{of.path}")
    page.get_by_text(of.wanted).first.wait_for()
    page.wait_for_function(STILL, polling=500)
    page.screenshot(path=HERE / of.file)


def demo_url() -> str:
    """The address of the demo's Airflow."""
    ports = HERE.parent / ".state" / "demo" / "ports.json"
    url = f"http://127.0.0.1:{json.loads(ports.read_text())['airflow'] if ports.exists() else 0}"
    try:
        urlopen(url, timeout=10).close()
    except OSError:
        sys.exit("screenshot: the demo does not run; start it with `make demo` in another terminal")
    return url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PICTURES)}")
    names = parser.parse_args().names or BY_ITSELF
    if unknown := [name for name in names if name not in PICTURES]:
        parser.error(f"{', '.join(unknown)}: there is none; there are {', '.join(PICTURES)}")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("screenshot: there is no Chromium; install it with `apt-get install chromium`")
    url = demo_url()
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-quic"])
        context = browser.new_context(locale="en-US", color_scheme="light")
        context.add_init_script(REMEMBER)
        context.set_default_timeout(DRAW_MILLISECONDS)
        page = context.new_page()
        for name in names:
            take(page, url, PICTURES[name])
            file = HERE / PICTURES[name].file
            print(f"{file}: {file.stat().st_size:,} bytes")
        browser.close()


if __name__ == "__main__":
    main()
