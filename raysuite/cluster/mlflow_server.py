"""MLflow's server for one user, with a password, a link that logs a browser in, and no job
execution.

MLflow's basic-auth app calls `authorize` for each request, except requests for its health, its list
of features and the static files of its pages.
"""

from __future__ import annotations

import configparser
import contextlib
import functools
import hmac
import os
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil

from raysuite.cluster import private
from raysuite.cluster.state_files import Mlflow
from raysuite.files import sqlite_uri

if TYPE_CHECKING:
    from werkzeug.datastructures import Authorization
    from werkzeug.wrappers import Response

COOKIE = "raysuite-mlflow"
_TOKEN = "token"
_ONWARD = """<!doctype html><title>MLflow</title>
<script>location.replace("./" + location.hash)</script>
"""
"""The page that follows a login by the link; it loads the same address without the password."""
_CONFIG = "MLFLOW_AUTH_CONFIG_PATH"
_OF_OTHERS = (
    *("MLFLOW_TRACKING_", "MLFLOW_AUTH_", "MLFLOW_BASIC_AUTH_"),
    *("MLFLOW_SERVER_", "MLFLOW_STATIC_PREFIX"),
)
"""Prefixes of environment variables that this server must not inherit: they are for clients and
other servers."""
_PASSWORDS_KEPT_S = 300
"""Seconds for which a correct password is cached: hashing a password takes a tenth of a second."""


def words(address: str, port: int, artifacts: Path) -> list[str]:
    """The command line, without secrets, of a server that stores artifacts in a folder."""
    return [
        *(sys.executable, "-P", "-m", "mlflow", "server", "--app-name", "basic-auth"),
        *("--workers", "1", "--host", address, "--port", str(port)),
        "--uvicorn-opts=--no-access-log",  # the access log would contain the link
        *("--serve-artifacts", "--artifacts-destination", artifacts.as_uri()),
    ]


def environment(
    base: Mapping[str, str], folder: Path, user: Mlflow, store: str, hosts: Sequence[str], port: int
) -> dict[str, str]:
    """The server's environment. The user's password is written to a file in `folder`, which must
    be private.

    `store` is the database's URL; `hosts` are the names by which browsers may address the server.
    The database's URL and the secret key for cookies are only in this environment, which /proc
    shows only to the process's owner.
    """
    config = folder / "auth.ini"
    config.unlink(missing_ok=True)
    private.create(config, _auth_config(user, folder / "auth.db"))
    return {
        **{name: value for name, value in base.items() if not name.startswith(_OF_OTHERS)},
        _CONFIG: str(config),
        "MLFLOW_FLASK_SERVER_SECRET_KEY": private.new_token(),
        "MLFLOW_BACKEND_STORE_URI": store,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(f"{host},{host}:*" for host in hosts),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(f"http://{host}:{port}" for host in hosts),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        # the server's own children, such as uvicorn, import no modules of the working folder either
        "PYTHONSAFEPATH": "1",
    }


def link(host: str, port: int, user: Mlflow) -> str:
    """The link that logs a browser in."""
    return f"http://{host}:{port}/?{_TOKEN}={user.password}"


def answers(url: str, pid: int) -> bool:
    """Whether the server is up at `url`, in process `pid` or one of its children.

    Nothing is sent to another program that listens there: it must not get a password or a link.
    """
    parts = urlsplit(url)
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        listening = {
            each.laddr
            for member in (process, *process.children(recursive=True))
            for each in member.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN
        }
        if (parts.hostname, parts.port) in listening:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            return bool(opener.open(f"{url}/health", timeout=2.0).status == 200)
    return False


def authorize() -> Authorization | Response:
    """MLflow's server calls this for each request: identify its sender, or refuse the request.

    A browser that opens `/?token=PASSWORD` gets a cookie and a page that loads the address without
    the password. A redirect would not work: the cookie is SameSite=Strict, and a browser
    that follows a link from a file or from another site does not send such a cookie with the
    redirected request (RFC 6265bis, 5.2.1). Programs send the password by HTTP basic
    authentication."""
    from flask import current_app, make_response, request
    from mlflow.server.auth import authenticate_request_basic_auth
    from werkzeug.datastructures import Authorization

    user, password = _user()
    session = hmac.digest(str(current_app.secret_key).encode(), b"session", "sha256").hex()
    # MLflow lets pages of any port on localhost send a browser's cookies and read the answers
    own = f"http://{request.headers.get('Host')}"
    if request.headers.get("Origin", own) != own:
        return make_response("requests from pages of other origins are refused", 403)
    if _equal(request.cookies.get(COOKIE), session):
        return Authorization("basic", {"username": user})
    if _equal(request.args.get(_TOKEN), password):
        answer = make_response(_ONWARD)
        answer.headers["Referrer-Policy"] = "no-referrer"
        answer.set_cookie(COOKIE, session, httponly=True, samesite="Strict")
        return answer
    return authenticate_request_basic_auth()


def _equal(given: str | None, right: str) -> bool:
    return hmac.compare_digest((given or "").encode(), right.encode())


@functools.cache
def _user() -> tuple[str, str]:
    config = configparser.ConfigParser()
    config.read(os.environ[_CONFIG], "utf-8")
    return config["mlflow"]["admin_username"], config["mlflow"]["admin_password"]


def _auth_config(user: Mlflow, database: Path) -> str:
    values = {
        "default_permission": "NO_PERMISSIONS",
        "database_uri": sqlite_uri(database),
        "admin_username": user.username,
        "admin_password": user.password,
        "authorization_function": f"{__name__}:authorize",
        "auth_cache_ttl_seconds": str(_PASSWORDS_KEPT_S),
    }
    lines = [f"{name} = {value.replace('%', '%%')}\n" for name, value in values.items()]
    return "".join(["[mlflow]\n", *lines])
