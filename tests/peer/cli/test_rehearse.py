"""`manyhands rehearse` and `manyhands plan`, as a person at a terminal and as a script."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from auth.errors import ConfigError, StorageError
from peer.cli.rehearse import app
from peer.config.run import RunConfig

HOME = {"up_mbit_per_second": 10, "down_mbit_per_second": 50}
SCENARIO = {
    "duration_s": 300,
    "parameters": 1_000_000,
    "devices": [
        {
            "name": f"home-{number}",
            "line": {"up_mbit_per_second": 10, "down_mbit_per_second": 50},
            "samples_per_second": 1,
        }
        for number in (1, 2)
    ],
}
RUN = {
    "run": {"name": "small"},
    "model": {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 128},
    "tokenizer": {"vocab_size": 1000},
    "data": {"sequence_length": 64, "microbatch_size": 2},
    "averaging": {"target_batch_size": 64},
}


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A run with a small model and a batch of 64."""
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(RUN), encoding="utf-8")
    return path


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """Two homes for five minutes."""
    path = tmp_path / "homes.yaml"
    path.write_text(yaml.safe_dump(SCENARIO), encoding="utf-8")
    return path


def succeed(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "160"})
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def refusal(*arguments: object) -> ConfigError | StorageError:
    """The error that ends the command, as `manyhands` prints it."""
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert isinstance(result.exception, ConfigError | StorageError), result.output
    assert str(result.exception).endswith(".")
    return result.exception


def test_a_scenario_is_told_as_a_table(run_file: Path, scenario: Path) -> None:
    """The output names what was rehearsed, and has a row for each figure."""
    told = succeed("rehearse", run_file, "--scenario", scenario, "--seeds", 2)
    assert "the run `small` with 2 devices of homes.yaml" in told
    assert "2 swarms" in told
    assert "Time from one step to the next" in told


def test_scripts_read_the_same_figures_as_json(run_file: Path) -> None:
    """`--json` prints one object, here of drawn volunteers."""
    content = json.loads(succeed("rehearse", run_file, "--volunteers", 3, "--hours", 0.03, "--seeds", 1, "--json"))
    assert content["devices"] == 3
    assert content["hours"] == pytest.approx(0.03)
    assert content["figures"]["steps"]["p50"] >= 1


def test_a_run_that_chooses_tells_its_choice(run_file: Path, scenario: Path) -> None:
    """A scenario's file is rehearsed with as many values as the chosen rank averages of the run's model."""
    slow = {"averaging": {"target_batch_size": 8, "compression": "auto"}}
    run_file.write_text(yaml.safe_dump(RUN | slow), encoding="utf-8")
    content = json.loads(succeed("rehearse", run_file, "--scenario", scenario, "--seeds", 1, "--json"))
    assert content["remarks"][0].startswith("`averaging.compression` (auto) was rehearsed as `powersgd_rank: ")
    run_file.write_text(yaml.safe_dump(RUN | {"averaging": {"target_batch_size": 8}}), encoding="utf-8")
    whole = json.loads(succeed("rehearse", run_file, "--scenario", scenario, "--seeds", 1, "--json"))
    times = [each["figures"]["averaging_s"]["p50"] for each in (content, whole)]
    assert times[0] < times[1]


def test_a_picture_is_drawn(run_file: Path, scenario: Path, tmp_path: Path) -> None:
    """The file is a PNG of some size; a folder that is missing is one sentence."""
    target = tmp_path / "event.png"
    assert "event.png" in succeed("rehearse", run_file, "--scenario", scenario, "--seeds", 1, "--picture", target)
    assert target.read_bytes().startswith(b"\x89PNG")
    missing = refusal(
        "rehearse", run_file, "--scenario", scenario, "--seeds", 1, "--picture", tmp_path / "no" / "e.png"
    )
    assert "cannot be written" in str(missing)


def test_without_matplotlib_the_picture_says_what_to_install(
    run_file: Path, scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra that brings it is named, before anything is rehearsed."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delattr("peer.cli.rehearse.rehearse_seeds")
    said = refusal("rehearse", run_file, "--scenario", scenario, "--seeds", 1, "--picture", tmp_path / "event.png")
    assert "`--picture` needs the package matplotlib" in str(said)
    assert "corpus" in str(said)


def test_advice_comes_with_figures_before_and_after(run_file: Path, scenario: Path) -> None:
    """The table has the run as it is and each change; the verdict stands below."""
    told = succeed("rehearse", run_file, "--scenario", scenario, "--seeds", 1, "--advise")
    assert "as it is" in told
    assert "delay: true" in told
    assert "Recommended" in told


def test_mistakes_are_one_sentence_with_exit_code_3(run_file: Path, scenario: Path, tmp_path: Path) -> None:
    """Each message names the option or the file, and what is wrong with it."""
    idle = tmp_path / "idle.yaml"
    idle.write_text(yaml.safe_dump({**SCENARIO, "devices": [{"name": "a", "line": HOME}]}))
    cases = {
        "Cannot read the run file": [tmp_path / "missing.yaml"],
        "`--volunteers` (0) must be above 0": [run_file, "--volunteers", 0],
        "`--hours` (-1) must be above 0": [run_file, "--hours", -1],
        "`--seeds` (100000) must be above 0, and at most 1000": [run_file, "--seeds", 100_000],
        "Nobody trains in the scenario": [run_file, "--scenario", idle],
        "cannot be read": [run_file, "--scenario", tmp_path / "none.yaml"],
        "`--volunteers` is for drawn volunteers": [run_file, "--scenario", scenario, "--volunteers", 3],
        "The region (mars) has no table": [run_file, "--region", "mars"],
    }
    for message, arguments in cases.items():
        error = refusal("rehearse", *arguments)
        assert message in str(error)
        assert error.exit_code == 3


def test_a_plan_is_written_once(tmp_path: Path) -> None:
    """The file loads as a run, and is not written over."""
    target = tmp_path / "planned.yaml"
    arguments = ("plan", "--language", "bn", "--volunteers", 3, "--hours", 0.1, "--seeds", 1, "-o", target)
    assert "planned.yaml" in succeed(*arguments)
    config = RunConfig.from_yaml(target)
    assert config.run.language == "bn"
    assert [source.config_name for source in config.data.sources] == ["20231101.bn", "bn"]
    assert config.tokenizer.preset == "bengali"
    assert "exists already" in str(refusal(*arguments))


def test_a_plan_refuses_what_is_no_language_or_number() -> None:
    """The mistake is named in one sentence."""
    assert str(refusal("plan", "--language", "!!")).startswith("`--language`: `run.language`")
    assert "no Wikipedia" in str(refusal("plan", "--language", "tlh"))
    assert "`--volunteers` (0)" in str(refusal("plan", "--language", "bn", "--volunteers", 0))
