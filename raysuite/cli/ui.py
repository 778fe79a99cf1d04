"""`raysuite ui`: MLflow's server on this machine, and the link to the newest experiment's runs."""

from __future__ import annotations

import os
import secrets
import subprocess
import time
import webbrowser
from pathlib import Path

import typer

from raysuite.cli.console import print_text
from raysuite.cluster import mlflow_server, private
from raysuite.cluster.ports import held_port
from raysuite.cluster.process import end_with_parent, in_order
from raysuite.cluster.state_files import Mlflow
from raysuite.errors import UserError
from raysuite.track.store import (
    artifacts_folder,
    prepare_store,
    runs_page,
    tracking_address,
    without_password,
)
from raysuite.track.sync import one_line

ADDRESS = "127.0.0.1"


def ui() -> None:
    """Open MLflow's table of the newest results, from a server that only you can use, until
    Ctrl-C.

    The server shows the database that MLFLOW_TRACKING_URI names, or mlflow.db in the working
    folder. If MLFLOW_TRACKING_URI names a running server, no other server is started, and the
    address of the page on that server is printed.

    \b
    Examples:
      raysuite ui
      MLFLOW_TRACKING_URI=sqlite:////data/mlflow.db raysuite ui
    """
    if code := _serve():
        raise typer.Exit(code)


def _serve() -> int:
    """Run the server until it ends; return its exit code. Raises UserError if MLflow cannot use the
    store."""
    store = tracking_address()
    try:
        prepare_store(store)
        page = runs_page(store)
    except Exception as error:  # a store may raise anything
        raise UserError(
            f"MLflow's store {without_password(store)} cannot be used: {one_line(error)}; set "
            "MLFLOW_TRACKING_URI to a running server, or to a database such as "
            "sqlite:////data/mlflow.db"
        ) from error
    if store.startswith(("http://", "https://")):  # already a server
        print_text(f"{without_password(store)}/{page}")
        return 0
    # A browser sends a host's cookies to all its ports, also to other users' servers at 127.0.0.1.
    # So the host gets a random name: browsers resolve names below localhost themselves.
    host = f"raysuite-{secrets.token_hex(8)}.localhost"
    user = Mlflow(username="raysuite", password=private.new_token())
    with in_order(), private.temporary_folder("rs-ui-") as folder, held_port() as port:
        artifacts = artifacts_folder(store)
        words = mlflow_server.words(ADDRESS, port, artifacts)
        hosts = (host, ADDRESS, "localhost")
        process = subprocess.Popen(
            [*words, "--default-artifact-root", artifacts.as_uri()],
            env=mlflow_server.environment(os.environ, folder, user, store, hosts, port),
            preexec_fn=end_with_parent,
        )
        try:
            while process.poll() is None:
                if mlflow_server.answers(f"http://{ADDRESS}:{port}", process.pid):
                    _open(mlflow_server.link(host, port, user) + page, folder)
                    break
                time.sleep(0.5)
            return process.wait()
        except KeyboardInterrupt:
            return 0
        finally:
            process.terminate()
            process.wait()  # it writes into the folder


def _open(link: str, folder: Path) -> None:
    """Print the link, and open it through a private file: the link contains the password, and all
    users can read a browser's command line."""
    print_text(f"\n{link}\n")
    page = folder / "link.html"
    private.create(page, f'<meta http-equiv="refresh" content="0;url={link}">')
    webbrowser.open(page.as_uri())
