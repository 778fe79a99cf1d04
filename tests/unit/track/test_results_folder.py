"""The identity of a results folder, and its lock."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from raysuite.track import results_folder as folders
from raysuite.track.results_folder import digest, locked, results_id


def test_the_id_stays_when_the_folder_moves(tmp_path):
    first = tmp_path / "a"
    first.mkdir()
    name = results_id(first)
    assert len(name) == 32
    moved = first.rename(tmp_path / "b")
    assert results_id(moved) == name


def test_processes_that_come_at_once_agree_on_the_id(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(results_id, [tmp_path] * 8))) == 1


def test_a_folder_that_cannot_be_written_to_has_an_id_that_follows_from_its_plan(
    tmp_path, monkeypatch
):
    (tmp_path / "plan.json").write_text("[]")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr("pathlib.Path.write_text", refuse)
    assert results_id(tmp_path) == results_id(tmp_path)
    assert not (tmp_path / "results.id").exists()


def test_one_at_a_time_and_not_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "PATIENCE", 0.1)
    with locked(tmp_path), pytest.raises(TimeoutError, match="another process"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass
    shutil.rmtree(tmp_path)
    with locked(tmp_path):  # a folder without a lock is written without one
        pass


def test_digest_follows_names_and_contents(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("x")
    empty = digest(two)
    assert digest(one) != digest(two)
    two.write_text("x")
    assert digest(one) != digest(two) != empty
    before = digest(two)
    two.write_text("y")
    assert digest(two) != before
