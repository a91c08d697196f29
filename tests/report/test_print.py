"""A report on paper: two pages to sign, then the appendix on a page of its own (headless Chromium and poppler)."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from test_page import GUESS, document, folder, pictures
from test_signing import CDP, known

from fedveil.attacks import results
from fedveil.report.write import report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None or shutil.which("pdftotext") is None, reason="needs Chromium and poppler-utils"
    ),
]


def printed(page, profile):
    """The pages of the printed report, as text."""
    paper = page.with_suffix(".pdf")
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    quiet += ["--disable-component-update", "--disable-sync", "--no-pdf-header-footer", f"--user-data-dir={profile}"]
    subprocess.run(
        [CHROMIUM, *quiet, f"--print-to-pdf={paper}", page.as_uri()], capture_output=True, timeout=90, check=True
    )
    text = subprocess.run(["pdftotext", "-layout", str(paper), "-"], capture_output=True, text=True, check=True).stdout
    return text.split("\f")


def attacked(path, share):
    results.save(path, {"name": "cpl"}, document("server", share, images=299, victims=8), pictures())
    results.save(path, {"name": "cpl"}, document("client", share, images=299, victims=8))
    results.save(path, {"name": "cpl"}, document("example", 0.9), pictures())
    results.save(path, {"name": "loss-threshold"}, GUESS)
    return known(path)


@pytest.fixture
def studies(tmp_path):
    """Four runs on which everything was tried, so that nothing is left out of the first pages."""
    sdp = ("defense.name=fed-sdp", "defense.noise=20", "defense.clip_scope=flat")
    secure = (*CDP, "defense.placement=cohort", "train.secure_aggregation=true")
    kinds = {"open": (), "sdp": sdp, "cdp": CDP, "secure": secure}
    return [attacked(folder(tmp_path / name, *given), 0.5 if name == "open" else 0.0) for name, given in kinds.items()]


@pytest.mark.parametrize("count", [1, 4])
def test_two_pages_are_signed_and_the_appendix_begins_a_page(studies, count, tmp_path):
    page = report(studies[-count:], tmp_path / "report.html").path
    pages = printed(page, tmp_path / "profile")
    begins = [number for number, text in enumerate(pages, 1) if text.strip().startswith("Appendix")]
    assert begins == [3], [text.strip()[:60] for text in pages]
    first = "".join(pages[:2])
    for heading in ("What leaks, to whom", "Who is protected", "What was tried", "What an attack saw", "Signature"):
        assert heading in first
    assert "Hazards" in "".join(pages[2:]) and "date, signature" in pages[1]
    assert ("Accuracy and ε" in first) is (count > 1)


def test_a_phone_shows_the_page_without_scrolling_sideways(studies, tmp_path):
    play = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    page = report(studies, tmp_path / "report.html").path
    with play.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        seen = browser.new_page(viewport={"width": 390, "height": 800})
        seen.goto(page.as_uri(), timeout=90_000)
        assert seen.evaluate("document.documentElement.scrollWidth") <= 390
        browser.close()
