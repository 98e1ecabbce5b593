"""The docs as pages: all of them are reached, and a link that leads nowhere ends the build."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_docs import FENCE, ROOT


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A copy of what the site is made from."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    return tmp_path


def build(site: Path) -> subprocess.CompletedProcess[str]:
    said = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", "pages"]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(said, cwd=site, env=env, capture_output=True, text=True)


def test_every_page_is_in_the_site(site: Path):
    done = build(site)
    assert done.returncode == 0, done.stderr
    assert {p.stem for p in (site / "pages").glob("*.html")} >= {p.stem for p in (ROOT / "docs").glob("*.md")}


def test_every_code_block_is_one_and_every_heading_has_its_place(site: Path):
    assert build(site).returncode == 0
    for page in (ROOT / "docs").glob("*.md"):
        made = (site / "pages" / f"{page.stem}.html").read_text()
        assert "```" not in made, page.name
        text = FENCE.sub("", page.read_text())
        assert len(re.findall(r"<h[2-6] ", made)) >= len(re.findall(r"^##+ ", text, re.MULTILINE)), page.name


@pytest.mark.parametrize("target", ["nowhere.md", "glossary.md#nothing-of-this-name"])
def test_a_link_that_leads_nowhere_is_named(site: Path, target: str):
    with (site / "docs" / "views.md").open("a") as page:
        page.write(f"\nSee [there]({target}).\n")
    done = build(site)
    assert done.returncode != 0 and target in done.stderr


def test_a_page_that_is_not_in_the_site_is_named(site: Path):
    (site / "docs" / "left.md").write_text("# Left out\n")
    done = build(site)
    assert done.returncode != 0 and "left.md" in done.stderr
