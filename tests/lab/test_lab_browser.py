"""The lab in a browser (Debian's Chromium, headless): pages, a live attack, cancelling, a bad upload, the keyboard.

Screenshots go to the folder that LAB_ARTEFACTS names. Nothing is downloaded: without Chromium these tests are skipped.
"""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PAGES = ("leak", "tradeoff", "runs")
LONG = 90_000
READY = {
    "leak": ("#gallery img", "table.seats", "#script-cli"),
    "tradeoff": ("table.seats", "#script-cli"),
    "runs": ("#list",),
}


@pytest.fixture(scope="module")
def lab(lab_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with lab_server(tmp_path_factory.mktemp("browsed")) as served:
        yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    pytest.importorskip("playwright", reason="needs playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        made = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


class Seen:
    """A page that is watched: what its console says and whom it asks."""

    def __init__(self, browser: Any, lab: Any, width: int = 1280, height: int = 900, scheme: str = "light"):
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.lab, self.wrong, self.outside = lab, [], []
        self.page.on("console", lambda m: self.wrong.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda r: None if r.url.startswith((lab.url, "data:")) else self.outside.append(r.url))

    def open(self, page: str) -> Any:
        self.page.goto(f"{self.lab.url}/{page}")
        for selector in READY[page.split("?")[0]]:
            self.page.wait_for_selector(selector, timeout=LONG)
        return self.page

    def close(self) -> None:
        self.context.close()
        assert self.wrong == [] and self.outside == []


@pytest.fixture
def see(browser: Any, lab: Any) -> Iterator[Callable[..., Seen]]:
    made: list[Seen] = []

    def one(**more: Any) -> Seen:
        made.append(Seen(browser, lab, **more))
        return made[-1]

    yield one
    for seen in made:
        seen.close()


def _expect(page: Any, selector: str, text: str) -> None:
    from playwright.sync_api import expect

    expect(page.locator(selector)).to_have_text(re.compile(text), timeout=LONG)


def test_training_is_followed_live_and_reported(see: Callable[..., Seen], artefacts: Path) -> None:
    page = see().open("tradeoff")
    _expect(page, "#accuracy", r"79\.8 % on the validation data, measured by run shipped")
    before = page.inner_text("table.seats")
    page.fill("#defense-noise", "2")
    page.fill("#rounds", "12")
    _expect(page, "#account-note", "After 12 rounds")
    assert page.inner_text("table.seats") != before
    _expect(page, "#accuracy", "Not measured yet")
    page.click("#start")
    _expect(page, "#state", r"^round \d+ of 12")
    _expect(page, "#state", r"^done: accuracy")
    _expect(page, "#accuracy", r"measured by run lab-digits-fed-cdp")
    page.screenshot(path=artefacts / "tradeoff-trained.png", full_page=True)
    page = see().open("runs")
    page.check("#list input[type=checkbox]")
    page.wait_for_selector("#charts svg")
    _expect(page, "#settings", "defense.noise")
    page.screenshot(path=artefacts / "runs-one.png", full_page=True)
    with page.context.expect_page() as opened:
        page.click("#report")
    opened.value.wait_for_load_state()
    assert page.get_attribute("#list input[type=checkbox]", "data-run") in opened.value.content()
    opened.value.screenshot(path=artefacts / "runs-report.png")


def test_a_training_elsewhere_is_followed(see: Callable[..., Seen], lab: Any, artefacts: Path) -> None:
    trade = {"defense": {"name": "none"}, "rounds": 1000, "local_steps": 50, "model": "mlp"}
    _, job = lab.ask("/api/train", {"trade": trade})
    page = see().open("runs")
    page.wait_for_selector(f"[data-run='{job['run']}']", timeout=LONG)
    page.check(f"[data-run='{job['run']}']")
    _expect(page, "#progress", r"is at round [1-9]\d* of 1000")
    first = page.inner_text("#progress")
    from playwright.sync_api import expect

    expect(page.locator("#progress")).not_to_have_text(first, timeout=30_000)
    page.check("#list tbody tr:nth-child(2) input")
    _expect(page, "#detail-title", "2 runs compared")
    keys = {row.split("\t")[0]: row.split("\t")[1:] for row in page.inner_text("#settings tbody").splitlines()}
    assert keys["defense.name"] == ["none", "fed-cdp"] and keys["model.name"] == ["mlp", "cnn"]
    assert not any(key.startswith(".") or key in ("defense", "hidden") for key in keys)
    page.screenshot(path=artefacts / "runs-compare-live.png", full_page=True)
    lab.ask(f"/api/jobs/{job['id']}/cancel", {})
    _expect(page, "#list tbody tr:nth-child(1)", "stopped")


def test_attack_is_watched_to_its_end(see: Callable[..., Seen], artefacts: Path) -> None:
    page = see().open("leak")
    page.click("#start")
    page.wait_for_selector("#cancel:enabled")
    assert page.is_disabled("#start")
    page.wait_for_selector(".side[data-side=open] img.found:not([hidden])", timeout=LONG)
    _expect(page, "#state", "^done")
    _expect(page, ".side[data-side=open] .verdict", "Leaks: the picture was reconstructed")
    _expect(page, ".side[data-side=defended] .verdict", "This attack failed")
    _expect(page, "#epsilon", r"ε = [\d.]+ for one example")
    assert page.is_disabled("#cancel") and page.is_enabled("#start")
    page.screenshot(path=artefacts / "leak-done.png", full_page=True)
    page.focus("#frame")
    page.keyboard.press("Home")
    _expect(page, "#frame-text", "^1 of")
    page.keyboard.press("End")
    page.select_option("#defense-name", "fed-sdp")
    _expect(page, "#epsilon", "no ε is certified against this adversary")
    _expect(page, "#state", "the settings have changed since")
    page.click("#start")
    _expect(page, ".side[data-side=defended] .verdict", "Leaks: .* The defence does not protect against this adversary")
    page.screenshot(path=artefacts / "leak-wrong-adversary.png", full_page=True)


def test_a_batch_of_pictures(see: Callable[..., Seen], artefacts: Path) -> None:
    page = see().open("leak")
    page.fill("#batch", "2")
    page.fill("#iterations", "30")
    page.select_option("#tap", "example")
    page.click("#start")
    _expect(page, "#state", "^done")
    assert page.locator(".side[data-side=open] .pair").count() == 2
    page.screenshot(path=artefacts / "leak-batch.png", full_page=True)


def test_attack_is_cancelled(see: Callable[..., Seen], artefacts: Path) -> None:
    page = see().open("leak")
    page.fill("#iterations", "5000")
    page.select_option("#attack", "inverting")
    page.fill("#batch", "4")
    page.click("#start")
    page.wait_for_selector(".side[data-side=defended] img.found:not([hidden])", timeout=LONG)
    page.click("#cancel")
    _expect(page, "#state", "^cancelled")
    _expect(page, ".side[data-side=open] .verdict", "Cancelled")
    page.screenshot(path=artefacts / "leak-cancelled.png")
    page.fill("#iterations", "5")
    page.select_option("#attack", "cpl")
    page.fill("#batch", "1")
    page.click("#start")  # the lab still works
    _expect(page, "#state", "^done")


def test_uploads(see: Callable[..., Seen], artefacts: Path, tmp_path: Path) -> None:
    seen = see()
    page = seen.open("leak")
    bad = tmp_path / "picture.png"
    bad.write_text("no picture at all")
    page.set_input_files("#file", bad)
    _expect(page, "#upload-error", "upload: got 'text'; takes a PNG, JPEG or WebP picture")
    assert len(seen.wrong) == 1 and "422" in seen.wrong.pop()  # the browser notes the refusal itself
    page.screenshot(path=artefacts / "leak-bad-upload.png")
    out = io.BytesIO()
    Image.radial_gradient("L").save(out, "PNG")
    good = tmp_path / "good.png"
    good.write_bytes(out.getvalue())
    page.set_input_files("#file", good)
    page.wait_for_selector("#own:not([hidden])")
    assert page.is_hidden("#upload-error")
    page.fill("#label", "3")
    page.click("#start")
    _expect(page, "#state", "^done")
    _expect(page, ".side[data-side=open] figcaption", r"label 3 \(true: 3\)")
    page.screenshot(path=artefacts / "leak-own-picture.png", full_page=True)


def test_wrong_settings_are_said(see: Callable[..., Seen]) -> None:
    seen = see()
    page = seen.open("leak")
    page.fill("#defense-noise", "-1")
    _expect(page, "#form-error", r"defense.noise: got -1; takes 0(\.0)? or more")
    page.fill("#defense-noise", "1")
    from playwright.sync_api import expect

    expect(page.locator("#form-error")).to_be_hidden()
    assert all("422" in text for text in seen.wrong)
    seen.wrong.clear()


def test_keyboard_alone(see: Callable[..., Seen]) -> None:
    page = see().open("leak")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.name || ''"))
        if reached[-1] == "start":
            break
    for wanted in (
        "jobs-button",
        "theme",
        "dataset",
        "picture",
        "file",
        "model",
        "batch",
        "defense-name",
        "tap",
        "start",
    ):
        assert wanted in reached, (wanted, reached)
    shown = page.eval_on_selector_all("#gallery input", "all => all.map(one => one.value)")
    chosen = shown.index(page.input_value("#gallery input:checked"))
    page.focus("#gallery input:checked")
    page.keyboard.press("ArrowRight")
    _expect(page, "#which", f"picture {shown[chosen + 1]} is selected")
    page.focus("#start")
    page.keyboard.press("Enter")
    _expect(page, "#state", "^done")
    page.focus("#jobs-button")
    page.keyboard.press("Enter")
    page.wait_for_selector("#jobs table")
    page.keyboard.press("Escape")
    assert page.is_hidden("#jobs") and page.evaluate("document.activeElement.id") == "jobs-button"


def test_scripts_can_be_copied(see: Callable[..., Seen]) -> None:
    seen = see()
    seen.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = seen.open("tradeoff")
    page.click("#scripts .script button >> nth=0")
    _expect(page, "#scripts .script button >> nth=0", "Copied")
    assert page.evaluate("navigator.clipboard.readText()") == page.inner_text("#script-cli")
    assert page.inner_text("#script-cli").startswith("fedveil train -s preset=paper -s data.name=digits ")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("size", "width", "height"), [("desktop", 1280, 900), ("phone", 375, 740)])
@pytest.mark.parametrize("name", PAGES)
def test_every_page_in_every_dress(
    see: Callable[..., Seen], artefacts: Path, name: str, size: str, width: int, height: int, scheme: str
) -> None:
    page = see(width=width, height=height, scheme=scheme).open(name)
    if name == "runs" and page.locator("#list input").count():
        page.check("#list input >> nth=0")
        page.wait_for_selector("#charts svg")
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, "the page is wider than the screen"
    assert (
        _contrast(
            page.evaluate("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
        )
        > 7
    )
    page.screenshot(path=artefacts / f"{name}-{size}-{scheme}.png", full_page=True)
    chosen = "dark" if scheme == "light" else "light"
    while page.get_attribute("html", "data-theme") != chosen:
        page.click("#theme")
    assert (
        _contrast(
            page.evaluate("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
        )
        > 7
    )


def _contrast(colours: list[str]) -> float:
    """Of two `rgb(r, g, b)`, as WCAG 2 has it."""
    light = []
    for colour in colours:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        light.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(light) + 0.05) / (min(light) + 0.05)
