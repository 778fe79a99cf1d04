"""What a shell is given to complete, by the protocol that the installed scripts speak."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from raysuite.cli import app

ASKED = {
    "bash": {"COMP_WORDS": "raysuite re", "COMP_CWORD": "1"},
    "zsh": {"_TYPER_COMPLETE_ARGS": "raysuite re"},
    "fish": {"_TYPER_COMPLETE_ARGS": "raysuite re", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
}
SCRIPTS = {
    "bash": ".bash_completions/raysuite.sh",
    "zsh": ".zfunc/_raysuite",
    "fish": ".config/fish/completions/raysuite.fish",
}


@pytest.mark.parametrize("shell", ASKED)
def test_verbs_are_completed(shell: str) -> None:
    env = {"_RAYSUITE_COMPLETE": f"complete_{shell}", **ASKED[shell]}
    seen = CliRunner().invoke(app, [], env=env, prog_name="raysuite")
    assert "report" in seen.stdout
    assert "register" in seen.stdout
    assert "sweep" not in seen.stdout


@pytest.mark.parametrize("shell", SCRIPTS)
def test_completion_is_installed(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda *_: (shell, f"/bin/{shell}"))
    monkeypatch.setenv("HOME", str(tmp_path))
    seen = CliRunner().invoke(app, ["--install-completion"], prog_name="raysuite")
    assert seen.exit_code == 0, seen.output
    assert "_RAYSUITE_COMPLETE" in (tmp_path / SCRIPTS[shell]).read_text()
