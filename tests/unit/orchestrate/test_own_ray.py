"""The token of a Ray of our own: in one file, of this user alone, for as long as that Ray lives."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from raysuite.orchestrate.own_ray import own_token


def _tokens() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH_")}


def test_it_is_fresh_and_this_users_alone(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    tokens = []
    before = os.umask(0)
    try:
        for folder in folders:
            folder.mkdir()
            with own_token(folder) as file:
                assert stat.S_IMODE(file.stat().st_mode) == 0o600
                tokens.append(file.read_text("utf-8"))
    finally:
        os.umask(before)
    assert all(re.fullmatch("[0-9a-f]{64}", token) for token in tokens)
    assert tokens[0] != tokens[1]


def test_the_environment_names_the_file_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-another-cluster")
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    before = _tokens()
    with own_token(tmp_path) as file:
        assert _tokens() == {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(file)}
    assert _tokens() == before


def test_it_never_takes_a_file_that_lies_there(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("known to another", "utf-8")
    with pytest.raises(FileExistsError), own_token(tmp_path):
        pass
