"""Which file a site's name means."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.cluster.sites import find_site, site_files
from raysuite.errors import UserError
from raysuite.spec.site import SITES, LocalSite, SlurmSite

CHECKOUT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path))
    (tmp_path / "sites").mkdir()
    return tmp_path / "sites"


def test_those_that_come_along() -> None:
    found = {name: find_site(name) for name in site_files()}
    assert set(found) == {
        *("alps-clariden", "jupiter-booster", "juwels-booster", "lab", "local", "perlmutter"),
        *("polaris", "slurm-generic"),
    }
    assert all(site.name == name for name, site in found.items())
    assert isinstance(found["local"], LocalSite)


def test_a_checkout_shows_them_below_deploy() -> None:
    shown = {file.stem for file in (CHECKOUT / "deploy" / "sites").glob("*.yaml")}
    assert shown == set(site_files())


def test_a_booster_node_as_aach_2023_has_it() -> None:
    site = find_site("juwels-booster")
    assert isinstance(site, SlurmSite)
    assert (site.gpus_per_node, site.cpus_per_node) == (4, 48)
    assert "ntested" in site.description


def test_ones_own_sites_come_first(own: Path) -> None:
    (own / "lab.yaml").write_text("kind: local\ndescription: mine\n")
    assert find_site("lab").description == "mine"


def test_a_path_is_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.yaml").write_text("kind: local\n")
    monkeypatch.chdir(tmp_path)
    assert find_site("x.yaml").name == "x"
    assert find_site(tmp_path / "x.yaml").name == "x"


def test_an_unknown_name_is_told_what_there_is() -> None:
    with pytest.raises(UserError, match="'local'") as caught:
        find_site("loacl")
    assert "slurm-generic" in str(caught.value)


def test_the_page_on_sites_explains_every_key() -> None:
    page = (CHECKOUT / "docs" / "how-to" / "sites.md").read_text("utf-8")
    keys = {key for kind in SITES.values() for key in kind.model_fields}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []
