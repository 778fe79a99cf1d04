"""The pictures of docs/pictures, of a results folder: `python docs/pictures.py RESULTS`.

It needs Chromium and the packages of `make setup`. The report is written anew, and MLflow gets the
results into a store of its own; RESULTS stays as it is.
"""

from __future__ import annotations

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

from raysuite.cli.explain import sheets_of
from raysuite.records import Results
from raysuite.report import build
from raysuite.track import sync

PICTURES = Path(__file__).parent / "pictures"
COLORS = 96
"""Of the palette: a fifth of the bytes."""
PATIENCE_MS = 120_000


def main(results: Path) -> None:
    """Write report.png, report-phone.png and mlflow.png."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        copy = Path(shutil.copytree(results, Path(folder) / results.name))
        build(Results(copy), pictures=False, further=sheets_of(Results(copy)))
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        for name, width, height in (("report", 1280, 900), ("report-phone", 390, 844)):
            page = browser.new_page(viewport={"width": width, "height": height})
            page.goto((copy / "report.html").as_uri())
            page.wait_for_selector("html[data-drawn]", timeout=PATIENCE_MS)
            _save(page, name)
        os.chdir(folder)
        summary = sync(Results(copy), "sqlite:///mlflow.db")
        assert summary.ok, summary
        with _server() as link:
            page = browser.new_page(viewport={"width": 1400, "height": 620})
            page.goto(link)
            page.locator(".ag-cell").first.wait_for(timeout=PATIENCE_MS)
            page.wait_for_timeout(3000)
            _save(page, "mlflow")
        browser.close()


@contextmanager
def _server() -> Iterator[str]:
    """The link to MLflow's page that `make ui` opens, in the working folder."""
    variables = {**os.environ, "BROWSER": "true %s"}
    variables.pop("MLFLOW_TRACKING_URI", None)
    command = [sys.executable, "-m", "raysuite.cli.ui"]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield next(line.strip() for line in process.stdout if line.startswith("http"))
        finally:
            process.terminate()


def _save(page: Any, name: str) -> None:
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(COLORS, dither=Image.Dither.NONE).save(PICTURES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    main(Path(sys.argv[1]))
