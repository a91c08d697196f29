"""The documentation site in a browser (headless Chromium): pages open without errors, and ask no other host for anything.

Skipped without mkdocs, playwright or Chromium. SITE_ARTEFACTS names a folder for screenshots.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PAGES = ("index", "tutorial", "ledger", "notebooks/attack-your-gradients", "reproduction", "glossary", "readme")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if any(importlib.util.find_spec(name) is None for name in ("mkdocs", "material", "nbconvert")):
        pytest.skip("needs mkdocs-material and nbconvert: make docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    pytest.importorskip("playwright", reason="needs playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser.new_page(viewport={"width": 1280, "height": 900})
        browser.close()


@pytest.mark.parametrize("name", PAGES)
def test_pages_open_and_ask_no_other_host(site: str, page: Any, name: str) -> None:
    asked: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{site}{name}.html")
    page.wait_for_load_state("networkidle")
    assert page.locator("h1").first.inner_text()
    assert not [url for url in asked if not url.startswith((site, "data:", "blob:"))]
    assert not errors
    broken = page.evaluate("Array.from(document.images).filter(i => i.complete && !i.naturalWidth).map(i => i.src)")
    assert not broken
    if folder := os.environ.get("SITE_ARTEFACTS"):
        page.screenshot(path=str(Path(folder) / f"{name.replace('/', '-')}.png"))


def test_search_finds_a_term(site: str, page: Any) -> None:
    page.goto(f"{site}index.html")
    page.locator("input.md-search__input").click()
    page.locator("input.md-search__input").fill("adjacency")
    page.wait_for_selector("a.md-search-result__link")
    assert page.locator("a.md-search-result__link").count() >= 2
