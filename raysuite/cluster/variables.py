"""By which variables programs find a cluster: paths of secrets, never secrets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from raysuite.cluster import ray_start
from raysuite.cluster.folder import VARIABLE, ClusterFolder
from raysuite.cluster.state_files import Head

RAY_SETTINGS = {
    **ray_start.ENVIRONMENT,
    # or workers yield to every other process, and starve beside a busy one: Ray gives them 15
    "RAY_worker_niceness": "0",
    # or processes that wait for the first workers' code are ended after 1 s, and others started
    "RAY_idle_worker_killing_time_threshold_ms": "60000",
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    # the controller runs in the driver, whose logging is its own
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    # requests to stop come from SLURM and signals: no actor that polls for them
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Of every Ray that runs are made on. Ray reads them when it is imported."""

RUN_SETTINGS = {
    **RAY_SETTINGS,
    # workers stay in the working folder, where relative paths and the user's modules are found;
    # the trials of a user's own script on the cluster must not share one
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}
"""Of the drivers of runs and sweeps, and of the processes that these start."""

LOOPBACK_ONLY = {
    # Ray replaces 127.0.0.1 by an address that others can reach, and listens there, unless
    # clusters are off: on Linux too, in spite of the name
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}

RAY_CLIENT = "RAYSUITE_RAY_CLIENT"
"""Variable with Ray Client's URL: RAY_ADDRESS is the dashboard's, for `ray job submit`."""

TRACKING_AUTH = "raysuite"
"""The provider of raysuite/track that reads the MLflow password from the cluster's folder."""


_LISTS = ("PATH", "LD_LIBRARY_PATH")


def with_site(variables: Mapping[str, str], site: Mapping[str, str]) -> dict[str, str]:
    """`variables` with those of a site: folders of its PATH and LD_LIBRARY_PATH come before those
    that are there, which may be an image's own. With them in place already, nothing changes."""
    merged = {**variables, **site}
    for name in _LISTS:
        there = variables.get(name)
        if there and name in site:
            begins = f"{there}:".startswith(f"{site[name]}:")
            merged[name] = there if begins else f"{site[name]}:{there}"
    return merged


def client_environment(folder: ClusterFolder, head: Head) -> dict[str, str]:
    """For a shell: `ray job submit` takes RAY_ADDRESS as the dashboard's URL."""
    gcs_host = head.gcs.rpartition(":")[0]
    client = {RAY_CLIENT: head.client} if head.client else {}
    return {
        "RAY_ADDRESS": head.dashboard,
        **client,
        **variables(folder, gcs_host, head.mlflow),
        **past_proxies((head.dashboard, head.mlflow), os.environ),
    }


def variables(folder: ClusterFolder, address: str, mlflow: str) -> dict[str, str]:
    """The variables that a program needs to use the cluster, except Ray's address."""
    found = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder.token_file),
        VARIABLE: str(folder.path),
    }
    if mlflow:
        found["MLFLOW_TRACKING_URI"] = mlflow
        found["MLFLOW_TRACKING_AUTH"] = TRACKING_AUTH
    if address.startswith("127."):
        found |= LOOPBACK_ONLY
    return found


_NAMES = ("NO_PROXY", "no_proxy")
"""Programs read one or the other; where both are set, most read the second."""


def past_proxies(urls: tuple[str, ...], environment: Mapping[str, str]) -> dict[str, str]:
    """The two variables with what they hold in `environment`, and the hosts of `urls` besides."""
    there = ",".join(environment.get(each, "") for each in _NAMES)
    hosts = [host for part in there.split(",") if (host := part.strip())]
    if "*" not in hosts:  # which means all hosts, where it is the only entry
        hosts += [name for url in urls if (name := urlsplit(url).hostname)]
    return dict.fromkeys(_NAMES, ",".join(dict.fromkeys(hosts)))
