"""A site's file: what it may say, and every mistake in it at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.errors import Mistake, SpecError, UserError
from raysuite.spec.site import HostsSite, LocalSite, SlurmSite, read_site
from raysuite.spec.site_values import expand, node_range, secret_like, slurm_seconds


def read(tmp_path: Path, text: str) -> LocalSite | SlurmSite:
    file = tmp_path / "mysite.yaml"
    file.write_text(text, encoding="utf-8")
    return read_site(file)


def mistakes(tmp_path: Path, text: str) -> tuple[Mistake, ...]:
    with pytest.raises(SpecError) as caught:
        read(tmp_path, text)
    return caught.value.mistakes


def test_the_least_of_each_kind(tmp_path: Path) -> None:
    assert read(tmp_path, "kind: local") == LocalSite(name="mysite")
    assert read(tmp_path, "kind: slurm") == SlurmSite(name="mysite")


def test_the_name_is_the_files_unless_it_says_otherwise(tmp_path: Path) -> None:
    assert read(tmp_path, "kind: local\nname: other").name == "other"


def test_a_site_survives_json() -> None:
    site = SlurmSite(name="a", binds=("/x:/y:ro",), environment={"A": "é\t'"}, time="1-2")
    assert SlurmSite.model_validate_json(site.model_dump_json()) == site


def test_all_mistakes_at_once_in_the_order_of_their_lines(tmp_path: Path) -> None:
    text = """\
kind: slurm
partition: ""
time: soon
nodes: 0
interface: ib 0
binds: [relative, "/a:/b:rx"]
modules: [-x]
environment: {A B: c, HF_TOKEN: x, SLURM_JOB_ID: 1}
image: images/a.sif
mlflow: {backend: postgresql}
nods: 3
"""
    found = mistakes(tmp_path, text)
    assert [(mistake.key, mistake.line) for mistake in found] == [
        ("partition", 2),
        ("time", 3),
        ("nodes", 4),
        ("interface", 5),
        ("binds.0", 6),
        ("binds.1", 6),
        ("modules.0", 7),
        ("environment", 8),
        ("image", 9),
        ("mlflow", 10),
        ("nods", 11),
    ]
    assert {mistake.file for mistake in found} == {str(tmp_path / "mysite.yaml")}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes: 1", "valid: local, slurm"),
        ("kind: slrum", "'slurm'"),
        ("kind: [slurm]", "got ['slurm']"),
        ("kind: slurm\npartitoin: a", "'partition'"),
        ("kind: local\npartition: a", "unknown key"),
        ("kind: slurm\npartition: 'a\n\n  b'", "control characters"),
        ('kind: slurm\naccount: "a\\0b"', "control characters"),
        ("kind: slurm\nenvironment: {WANDB_API_KEY: x}", "looks like a secret"),
        ("kind: slurm\nenvironment: {A B: x}", "not a valid variable name"),
        ("kind: slurm\nenvironment: {RAY_ADDRESS: x}", "leave it out"),
        ('kind: slurm\nenvironment: {A: "x\\n#PBS -N y"}', "one line"),
        ("kind: slurm\nsbatch_lines: ['--x']", "such as '#SBATCH --mail-type=END'"),
        ("kind: slurm\nsbatch_lines: ['#SBATCH --nodes=3']", "sets --nodes, which raysuite"),
        ("kind: slurm\nsbatch_lines: ['#SBATCH -N3']", "sets -N, which raysuite"),
        ("kind: slurm\nsbatch_lines: ['#SBATCH --mail-type=END --wrap=x']", "sets --wrap"),
        ("kind: slurm\nsbatch_lines: ['#SBATCH --expor=ALL']", "sets --expor"),
        ("kind: slurm\ntime: 2", "warn_seconds"),
        ("kind: slurm\ngpu_type: a100", "gpu_type needs gpus_per_node"),
        (
            "kind: slurm\npartition: a\nsbatch_lines: ['#SBATCH -p b']",
            "partition is a",
        ),
        ("kind: slurm\ngpus_per_node: 4\nsbatch_lines: ['#SBATCH --gres=gpu:2']", "sets --gres"),
        ("kind: slurm\ntime: 9\nsbatch_lines: ['#SBATCH --tim=3']", "time is 9"),
        ("kind: slurm\nnodes: 4-2", "2-4"),
        ("kind: slurm\nscratch: tmp/$X", "such as $TMPDIR or /scratch/$USER/$SLURM_JOB_ID"),
        ("kind: slurm\nscratch: /a/$(id)", "each $ begins a variable"),
        ("kind: slurm\nprologue: ['a\n\n  b']", "control characters"),
        ("kind: slurm\nmemory_per_node: 480GB", "such as 480G"),
        ("kind: slurm\nmlflow: {url_file: /x}", "sqlite, leave url_file out"),
        ("kind: slurm\nmlflow: {url: 'postgresql://u:p@h/d'}", "unknown key"),
    ],
)
def test_one_mistake(tmp_path: Path, text: str, words: str) -> None:
    assert words in str(mistakes(tmp_path, text)[0])


def test_a_file_that_is_missing_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_site(tmp_path / "none.yaml")


@pytest.mark.parametrize("text", ["24:00:00", "'24:00:00'", "1-00:00:00", "1-0", "1440", "1440:00"])
def test_a_day_in_yaml(tmp_path: Path, text: str) -> None:
    site = read(tmp_path, f"kind: slurm\ntime: {text}")
    assert isinstance(site, SlurmSite)
    assert site.time == text.strip("'")
    assert slurm_seconds(site.time) == 86400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("1:30", 90), ("1:30:00", 5400), ("2-12", 216000), ("0-0:01:01", 61)],
)
def test_slurms_notation_of_a_time(text: str, seconds: int) -> None:
    assert slurm_seconds(text) == seconds


@pytest.mark.parametrize(
    ("nodes", "found"),
    [(3, (3, 3)), ("2-4", (2, 4)), ("4-4", (4, 4)), ("8-16", (8, 16)), ("2-10", (2, 10))],
)
def test_a_range_of_nodes_goes_from_the_least_to_the_most(
    nodes: int | str, found: tuple[int, int]
) -> None:
    assert node_range(nodes) == found


@pytest.mark.parametrize("nodes", ["4-3", "20-3", "10-9", "0-2", "2-", "a"])
def test_what_is_no_range_of_nodes(nodes: str) -> None:
    with pytest.raises(ValueError, match="a range such as 2-4"):
        node_range(nodes)


@pytest.mark.parametrize("text", ["", "0", "-1", "1:2:3:4", "1h", "UNLIMITED", "1-", "٣", "9" * 30])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="as SLURM writes it"):
        slurm_seconds(text)


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("account", "a", "-A b"),
        ("account", "a", "--account=b"),
        ("qos", "a", "-q b"),
        ("constraint", "a", "-C b"),
        ("reservation", "a", "--reservation=b"),
        ("time", "9", "-t 3"),
        ("memory_per_node", "4G", "--mem=1G"),
        ("memory_per_node", "4G", "--mem-per-cpu=1G"),
        ("gpus_per_node", 1, "-G 2"),
        ("gpus_per_node", 1, "--gpus-per-task=2"),
        ("exclusive", True, "--exclusive=user"),
    ],
)
def test_a_key_and_an_option_with_its_meaning_are_not_both_given(
    key: str, value: object, line: str
) -> None:
    lines = {"sbatch_lines": ["#SBATCH --mail-type=END", f"#SBATCH {line}"]}
    assert SlurmSite.model_validate(lines).sbatch_lines == tuple(lines["sbatch_lines"])
    with pytest.raises(ValueError, match=f"sets -.*, and {key} is {value}; give one"):
        SlurmSite.model_validate({key: value, **lines})


@pytest.mark.parametrize(
    "option",
    [
        *("-J", "--nodes", "-n", "--ntasks-per-node", "-c", "-o", "--error", "--open-mode", "-k"),
        *("--signal", "--requeue", "--no-requeue", "--export", "--chdir", "-D", "--array"),
        *("--parsable", "-W", "--get-user-env", "--hold", "-H"),
    ],
)
def test_options_of_sbatch_on_which_the_start_of_a_cluster_depends(option: str) -> None:
    for line in (f"#SBATCH {option}", f"#SBATCH --mail-type=END {option} x"):
        with pytest.raises(ValueError, match=f"sets {option}, which raysuite sets itself"):
            SlurmSite(sbatch_lines=(line,))


def test_options_of_srun_alone_are_those_of_srun() -> None:
    assert SlurmSite(srun_lines=("--signal=USR1", "--mpi=pmix")).srun_lines[1] == "--mpi=pmix"
    for line in ("--input=none", "--label", "--container-image=x", "--kill-on-bad-exit=0"):
        with pytest.raises(ValueError, match="which raysuite sets itself"):
            SlurmSite(srun_lines=("--mpi=pmix", line))


@pytest.mark.parametrize("kind", [SlurmSite, HostsSite])
def test_the_warning_comes_after_the_start(kind: type[SlurmSite | HostsSite]) -> None:
    assert kind(time="1:01", warn_seconds=60).time == "1:01"
    assert kind(warn_seconds=65535).time is None
    with pytest.raises(ValueError, match="time is 1:00 and warn_seconds is 60"):
        kind(time="1:00", warn_seconds=60)


def test_gpus_that_a_key_asks_for() -> None:
    for site, gpus in (
        (LocalSite(), False),
        (LocalSite(gpus=0), False),
        (LocalSite(gpus=2), True),
        (HostsSite(), False),
        (HostsSite(gpus_per_node=0), False),
        (HostsSite(gpus_per_node=4), True),
        (SlurmSite(), False),
        (SlurmSite(gpus_per_node=1), True),
    ):
        assert site.has_gpus == gpus, site


@pytest.mark.parametrize(
    ("launcher", "valid"),
    [
        ("flux", True),
        ("fluxx", False),
        (("on", "{host}", "{command}"), True),
        (("on", "{index}", "sh -c {line}"), True),
        (("on", "n{host}", "exec {line}"), True),
        (("on", "{host}"), False),
        (("on", "{host}", "x{command}"), False),
        (("on", "{command}"), False),
        (("on", "{line}"), False),
        (("on", "{host}", "{command}", "{line}"), False),
    ],
)
def test_a_launcher_starts_one_command_on_one_host(launcher: str, valid: bool) -> None:
    if valid:
        words = HostsSite(launcher=launcher).launcher_words
        assert words[0] in ("flux", "on")
        assert (words == launcher) == (launcher != "flux")
    else:
        with pytest.raises(ValueError, match="got "):
            HostsSite(launcher=launcher)


def test_an_image_is_a_sif_for_apptainer_alone() -> None:
    assert SlurmSite().is_sif
    assert not SlurmSite(engine="shifter").is_sif
    own = SlurmSite(launch=("run", "{image}", "{command}"), image="x:1", scratch="/scratch")
    assert (own.is_sif, own.image) == (False, "x:1")
    with pytest.raises(ValueError, match="without \\$"):
        SlurmSite(launch=("run", "{image}", "{command}"), image="x:1", scratch="$TMPDIR")
    assert SlurmSite(image="/a.sif", scratch="$TMPDIR").is_sif
    assert SlurmSite(engine="shifter", scratch="$TMPDIR").image is None
    binds = SlurmSite(engine="srun_environment", launch=("run", "{command}"), binds=("/a",))
    assert binds.binds == ("/a",)


def test_a_range_of_one_number_is_that_number() -> None:
    assert SlurmSite(nodes="3-3").nodes == 3
    assert SlurmSite(nodes="2-3").nodes == "2-3"


@pytest.mark.parametrize(
    ("line", "gpus"),
    [
        ("--gres=gpu:a100:4", True),
        ("--gpus-per-node=4", True),
        ("-G 4", True),
        ("--tres-per-task=cpu:2,gres/gpu:1", True),
        ("--gres nvme:1,gpu:2", True),
        ("--gres=nvme:1", False),
        ("--mail-type=END", False),
    ],
)
def test_gpus_that_a_line_of_ones_own_asks_for(line: str, gpus: bool) -> None:
    assert SlurmSite(sbatch_lines=(f"#SBATCH {line}",)).has_gpus == gpus


@pytest.mark.parametrize(
    ("lines", "clusters"),
    [
        ([], ""),
        (["--mail-type=END"], ""),
        (["--clusters=a,b"], "a,b"),
        (["--cluster a", "--mail-type=END"], "a"),
        (["--clusters=a", "-M b"], "b"),
        (["-Mb", "--cluster=a", "-G 4"], "a"),
    ],
)
def test_of_several_lines_with_slurm_clusters_the_last_one_counts(
    lines: list[str], clusters: str
) -> None:
    """As sbatch has it, which takes the last value of an option."""
    site = SlurmSite(sbatch_lines=tuple(f"#SBATCH {line}" for line in lines))
    assert site.clusters == clusters


def test_a_path_is_expanded_by_its_variables_alone() -> None:
    variables = {"USER": "ada", "SLURM_JOB_ID": "17", "ODD": "$USER"}
    assert expand("/s/$USER/${SLURM_JOB_ID}x/$ODD", variables) == "/s/ada/17x/$USER"
    assert SlurmSite(scratch="$TMPDIR").scratch == "$TMPDIR"
    with pytest.raises(UserError, match="TMPDIR is not set"):
        expand("$TMPDIR", variables)


def test_variables_that_seem_to_hold_a_password() -> None:
    proxy = "http://me:hush@proxy:3128"
    given = {"DB_PASS": "x", "HTTPS_PROXY": proxy, "NO_PROXY": "a.b", "OMP_NUM_THREADS": "3"}
    given |= {"SSH_KEY": "x", "http_proxy": "http://proxy:3128", "PWD": "/x", "KEYBOARD": "de"}
    assert secret_like(given) == ["DB_PASS", "HTTPS_PROXY", "SSH_KEY"]


def test_a_number_may_be_a_variables_value(tmp_path: Path) -> None:
    assert read(tmp_path, "kind: local\nenvironment: {A: 12}").environment == {"A": "12"}


def test_paths_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    site = read(tmp_path, "kind: local\nimage: ~/a.sif\nbinds: ['~/data:~/d:ro', ~/b]")
    assert site.image == "/home/ada/a.sif"
    assert site.binds == ("/home/ada/data:/home/ada/d:ro", "/home/ada/b")


def test_the_command_is_a_word_of_its_own_in_launch() -> None:
    assert LocalSite(launch=("sh", "-c", 'exec "$@"', "sh", "{command}"))
    with pytest.raises(ValueError, match="one of its words must be"):
        LocalSite(launch=("sh", "-c", "exec {command}"))
