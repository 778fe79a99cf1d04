"""`make ui`: MLflow's server on this machine, and the link to the newest experiment's runs.

MLflow 3 opens an experiment on an overview for language models, which is empty here; the link
names the page of training runs.
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
import webbrowser
from urllib.error import URLError

from raysuite.track.store import quiet, tracking_address

HOST, PORT = "127.0.0.1", 5000
LONGEST_S = 120.0


def runs_link(address: str, server: str) -> str:
    """The page of the runs of the experiment that changed last, in the store at `address`."""
    with quiet():
        from mlflow import MlflowClient

        newest = ["last_update_time DESC"]
        found = MlflowClient(address).search_experiments(max_results=1, order_by=newest)
    place = f"experiments/{found[0].experiment_id}/runs" if found else "experiments"
    return f"{server}/#/{place}?workflowType=machine_learning"


def main() -> int:
    """Run the server until it is ended; its exit code."""
    address, server = tracking_address(), f"http://{HOST}:{PORT}"
    command = [sys.executable, "-m", "mlflow", "ui", "--host", HOST, "--port", str(PORT)]
    command += ["--workers", "1", "--backend-store-uri", address]
    command += ["--default-artifact-root", "./mlartifacts"]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + LONGEST_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{server}/health", timeout=2)
        except (URLError, OSError):
            time.sleep(0.5)
            continue
        link = runs_link(address, server)
        print(f"\n{link}\n", flush=True)
        webbrowser.open(link)
        break
    try:
        return process.wait()
    except KeyboardInterrupt:
        return process.wait()


if __name__ == "__main__":
    sys.exit(main())
