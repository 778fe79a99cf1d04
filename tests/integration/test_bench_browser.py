"""The page of `raysuite bench loaders` in a real browser, from a file, with the network off."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.report.loading.build import build
from tests.fake_loading import fake_bench
from tests.require import chromium, require

pytestmark = [pytest.mark.browser, pytest.mark.integration, pytest.mark.slow]

FIGURES = {
    "native · 1 thread": ([480, 490, 470], 1.0),
    "native · 2 threads": ([900, 905, 895], 2.0),
    "decoding alone · 1 thread": ([500, 505, 495], 1.0),
    "decoding alone · 2 threads": ([1000, 1010, 990], 2.0),
}


@pytest.mark.parametrize("width", [1280, 390])
def test_it_is_drawn_without_a_complaint(tmp_path: Path, width: int) -> None:
    require("browser")
    from playwright.sync_api import sync_playwright

    build(fake_bench(FIGURES, failures={"dali cpu · 2 threads": "<b>no</b> DALI"}), tmp_path)
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"]
        )
        context = browser.new_context(offline=True, viewport={"width": width, "height": 900})
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: said.type == "error" and complaints.append(said.text))
        page.goto((tmp_path / "loaders.html").as_uri())
        page.wait_for_selector("html[data-drawn]", timeout=60_000)
        bars = page.query_selector_all("#plot-loaders .bars .point path")
        assert len([bar for bar in bars if bar.bounding_box()]) == 4
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert "<b>no</b> DALI" in page.inner_text("#table")
        browser.close()
    assert complaints == []
