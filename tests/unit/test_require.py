from __future__ import annotations

import pytest

from tests import require as module
from tests.require import require


@pytest.fixture
def nothing_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.PRESENT, "horovod", lambda: False)


@pytest.mark.usefixtures("nothing_is_here")
def test_a_missing_part_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYSUITE_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="horovod is missing"):
        require("horovod")


@pytest.mark.usefixtures("nothing_is_here")
def test_a_missing_part_fails_where_it_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSUITE_REQUIRE", "dali, horovod")
    with pytest.raises(pytest.fail.Exception, match="RAYSUITE_REQUIRE"):
        require("horovod")


def test_a_present_part_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.PRESENT, "dali", lambda: True)
    require("dali")
