"""The Transactions page that is shipped is built from the source beside it."""

from __future__ import annotations

from hashlib import sha256

from tests.unit.test_docs import ROOT

PAGE = ROOT / "include" / "ratchet" / "page"


def test_the_page_was_built_from_its_source():
    web = PAGE / "web"
    sources = sorted((file for file in (web / "src").iterdir()), key=lambda file: file.name)
    found = sha256()
    for file in [web / "index.html", web / "package-lock.json", web / "vite.config.mjs", *sources]:
        found.update(str(file.relative_to(web)).encode() + b"\0" + file.read_bytes() + b"\0")
    assert (PAGE / "static" / "source.sha256").read_text().strip() == found.hexdigest(), "make page"
