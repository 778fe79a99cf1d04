"""The token of a Ray that `raysuite run` starts for itself: fresh, and told to its processes only.

Left alone, Ray asks for a token too, but one that all of the user's clusters share, from
~/.ray/auth_token, which it writes readable for everyone whom the umask lets in.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from raysuite.cluster import private


@contextmanager
def own_token(folder: Path) -> Iterator[Path]:
    """Have the Ray that starts within the context ask for a new token; yields the token's file.

    `folder` is the user's own (0700) and holds the file, which is created with mode 0600. What the
    environment said of tokens before, it says again afterwards.
    """
    file = folder / "token"
    private.create(file, private.new_token())
    ours = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(file)}
    # Ray prefers a token in the environment to one in a file
    before = {name: os.environ.pop(name, None) for name in (*ours, "RAY_AUTH_TOKEN")}
    try:
        _set(ours)
        yield file
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if "ray" in sys.modules:  # it reads the environment once, when it is imported
        from ray._raylet import (  # type: ignore[attr-defined]
            AuthenticationTokenLoader,
            Config,
        )

        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()
