"""The environment variables by which programs find a cluster. They name files with secrets, but
contain no secret."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from raysuite.cluster import ray_start
from raysuite.cluster.folder import VARIABLE, ClusterFolder
from raysuite.cluster.state_files import Head

RAY_SETTINGS = {
    **ray_start.ENVIRONMENT,
    # with Ray's default of 15, a worker would get little CPU time next to another busy process
    "RAY_worker_niceness": "0",
    # by default, Ray replaces a worker process that is idle for 1 s, even before its first task
    "RAY_idle_worker_killing_time_threshold_ms": "60000",
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    # the controller runs in the driver, which configures its own logging
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    # requests to stop come from SLURM and signals: no actor needs to poll for them
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Settings for every Ray instance that executes runs. Ray reads them when it is imported."""

RUN_SETTINGS = {
    **RAY_SETTINGS,
    # Workers stay in the working folder, where relative paths and the user's modules are found. But
    # trials of a user's own script on the cluster must not share a folder, so this is not in
    # RAY_SETTINGS.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}
"""Settings for drivers of runs and sweeps, and for the processes that they start."""

LOOPBACK_ONLY = {
    # Ray replaces 127.0.0.1 by an address that other hosts can reach, and listens there, unless
    # Ray's clusters are off. Despite its name, this variable also applies on Linux.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}

INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")
"""Environment variables with the network interface that Gloo, NCCL and Horovod use."""

RAY_CLIENT = "RAYSUITE_RAY_CLIENT"
"""Environment variable with Ray Client's URL; RAY_ADDRESS has the dashboard's URL, for jobs."""

TRACKING_AUTH = "raysuite"
"""Name of the MLflow authentication provider in raysuite/track, which reads MLflow's password from
the cluster's folder."""


_LISTS = ("PATH", "LD_LIBRARY_PATH")


def with_site(variables: Mapping[str, str], site: Mapping[str, str]) -> dict[str, str]:
    """`variables`, overridden by a site's variables. In PATH and LD_LIBRARY_PATH, the site's
    folders are put before the existing folders (which may come from an image), unless the existing
    value already begins with the site's folders."""
    merged = {**variables, **site}
    for name in _LISTS:
        there = variables.get(name)
        if there and name in site:
            begins = f"{there}:".startswith(f"{site[name]}:")
            merged[name] = there if begins else f"{site[name]}:{there}"
    return merged


def client_environment(folder: ClusterFolder, head: Head) -> dict[str, str]:
    """Variables for a user's shell. RAY_ADDRESS is the dashboard's URL, for `ray job submit`."""
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
"""Some programs read only one of these variables; if both are set, most programs use no_proxy."""


def past_proxies(urls: tuple[str, ...], environment: Mapping[str, str]) -> dict[str, str]:
    """NO_PROXY and no_proxy with equal values: the hosts that either of them names in
    `environment`, and the hosts of `urls`."""
    there = ",".join(environment.get(each, "") for each in _NAMES)
    hosts = [host for part in there.split(",") if (host := part.strip())]
    if "*" not in hosts:  # as the only entry, * means all hosts
        hosts += [name for url in urls if (name := urlsplit(url).hostname)]
    return dict.fromkeys(_NAMES, ",".join(dict.fromkeys(hosts)))
