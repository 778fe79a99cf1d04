"""Make the pictures of docs/pictures from a results folder: `python docs/pictures.py RESULTS`.

It needs Chromium and the packages of `make setup`. The report is written again elsewhere, and the
results go into a temporary MLflow store; RESULTS is not changed.
"""

from __future__ import annotations

import html
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from raysuite.cli.report import sheets_of
from raysuite.records import Results
from raysuite.report import build
from raysuite.track import sync

PICTURES = Path(__file__).parent / "pictures"
COLORS = 64
"""Colours of the pictures' palette, which reduces them to a fifth of the bytes."""
PATIENCE_MS = 240_000
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
TERMINAL = "margin: 0; padding: 12px; font: 13px/1.35 'DejaVu Sans Mono', monospace; color: #222"


def main(results: Path) -> None:
    """Write report.png, plan.png and mlflow.png."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        copy = Results(Path(shutil.copytree(results.absolute(), Path(folder) / results.name)))
        build(copy, pictures=False, further=sheets_of)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=ARGUMENTS
        )
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.goto((copy.folder / "report.html").as_uri())
        page.wait_for_selector("html[data-drawn]", timeout=PATIENCE_MS)
        _save(page, "report")
        page.set_content(f'<pre style="{TERMINAL}">{html.escape(_plan(copy.folder))}</pre>')
        _save(page.locator("pre"), "plan")
        os.chdir(folder)
        summary = sync(copy, "sqlite:///mlflow.db")
        assert summary.ok, summary
        with _server() as link:
            page = browser.new_page(viewport={"width": 1400, "height": 620})
            page.goto(link)
            page.locator(".ag-row[row-index='0']").first.wait_for(timeout=PATIENCE_MS)
            page.wait_for_timeout(3000)  # for the charts beside it
            _save(page, "mlflow")
        browser.close()


def _plan(folder: Path) -> str:
    """The output of `raysuite plan` for the folder's spec."""
    command = [sys.executable, "-m", "raysuite", "plan", str(folder / "spec.yaml"), "--gpus", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return f"$ raysuite plan experiments/quickstart.yaml\n{done.stdout.rstrip()}"


@contextmanager
def _server() -> Iterator[str]:
    """The link to MLflow's page that `raysuite ui` opens, in the working folder."""
    variables = {**os.environ, "BROWSER": "true %s"}
    variables.pop("MLFLOW_TRACKING_URI", None)
    command = [sys.executable, "-m", "raysuite", "ui"]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield next(line.strip() for line in process.stdout if line.startswith("http"))
        finally:
            process.terminate()


def _save(shown: Any, name: str) -> None:
    picture = Image.open(io.BytesIO(shown.screenshot())).convert("RGB")
    picture.quantize(COLORS, dither=Image.Dither.NONE).save(PICTURES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
