"""A host without ssh."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.cluster.forward import connected
from raysuite.errors import UserError


def test_a_host_without_ssh_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="needs the program ssh"), connected("login"):
        pass
