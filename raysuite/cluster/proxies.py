"""Requests to a cluster, and their tokens, go past the web proxy that a site may have."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

_NAMES = ("NO_PROXY", "no_proxy")
"""Programs read one or the other; where both are set, most read the second."""


def past_proxies(urls: tuple[str, ...], environment: Mapping[str, str]) -> dict[str, str]:
    """The two variables with what they hold in `environment`, and the hosts of `urls` besides."""
    there = ",".join(environment.get(each, "") for each in _NAMES)
    hosts = [host for part in there.split(",") if (host := part.strip())]
    if "*" not in hosts:  # which is for all hosts, where it stands alone
        hosts += [name for url in urls if (name := urlsplit(url).hostname)]
    return dict.fromkeys(_NAMES, ",".join(dict.fromkeys(hosts)))
