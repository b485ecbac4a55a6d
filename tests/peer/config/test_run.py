"""The run file: defaults, the files that ship, one clear sentence for every mistake, and its public summary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from auth.errors import ConfigError
from peer.config.recipes import RECIPES, load_recipe
from peer.config.run import BUILTIN_RUNS, RunConfig, public_part

CONFIG = {
    "run": {"name": "secretive", "description": "for friends", "language": "bn"},
    "model": {"architecture": "bert", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3},
    "objective": {"name": "mlm"},
    "tokenizer": {"path": "/home/ada/tokenizer", "vocab_size": 5000},
    "data": {
        "sources": [{"kind": "text", "path": "/home/ada/letters.txt"}],
        "sequence_length": 64,
        "microbatch_size": 2,
    },
    "averaging": {"target_batch_size": 100},
    "phases": [{"from_step": 10, "target_batch_size": 200}],
}


def test_sizes_are_public_and_sources_are_not() -> None:
    """A machine can be measured by it, and nothing says where the operator's text or tokenizer lies."""
    config = RunConfig.from_mapping(CONFIG)
    public = public_part(config)
    assert public.model == config.model
    assert public.objective == config.objective
    assert public.tokenizer.vocab_size == 5000
    assert (public.data.sequence_length, public.data.microbatch_size) == (64, 2)
    assert public.averaging.target_batch_size == 100
    assert "ada" not in public.to_json()
    assert "friends" not in public.to_json()


def test_it_is_that_of_the_phase() -> None:
    """Later in the run the later sizes are told."""
    assert public_part(RunConfig.from_mapping(CONFIG).at_step(10)).averaging.target_batch_size == 200


def write(folder: Path, text: str) -> Path:
    """A run file with this content."""
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def mistake(folder: Path, text: str) -> str:
    """What the person reads who wrote this run file."""
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_yaml(write(folder, text))
    return str(caught.value)


def test_a_run_file_that_says_nothing_is_sahajberts_recipe(tmp_path: Path) -> None:
    """What a run file leaves out has the value of the sahajBERT run."""
    config = RunConfig.from_yaml(write(tmp_path, "run: {}"))
    assert (config.model.hidden_size, config.model.num_hidden_layers) == (1024, 24)
    assert (config.data.sequence_length, config.averaging.target_batch_size) == (512, 4096)
    assert (config.optimizer.learning_rate, config.optimizer.betas) == (1.76e-3, (0.9, 0.999))
    assert (config.schedule.warmup_steps, config.schedule.total_steps) == (5_000, 125_000)


@pytest.mark.parametrize("name", ["demo", *RECIPES])
def test_the_run_files_that_ship_are_valid(name: str) -> None:
    """Each run file in the package can be read and is named after its run."""
    assert RunConfig.from_yaml(BUILTIN_RUNS / f"{name}.yaml").run.name == name


def test_sahajberts_exact_run_file_agrees_with_the_defaults() -> None:
    """Model, objective, optimizer, schedule and averaging are written once more in the file, not differently."""
    shipped, defaults = load_recipe("albert-large", is_exact=True), RunConfig()
    for section in ("model", "objective", "optimizer", "schedule", "averaging", "checkpoints"):
        assert getattr(shipped, section) == getattr(defaults, section)


def test_the_demo_needs_no_download() -> None:
    """The demo trains on the built-in corpus, with a tokenizer trained on it."""
    demo = RunConfig.from_yaml(BUILTIN_RUNS / "demo.yaml")
    assert [source.kind for source in demo.data.sources] == ["builtin"]
    assert demo.tokenizer.path is None


def test_a_configuration_survives_the_way_through_a_checkpoint(tmp_path: Path) -> None:
    """The run file in a checkpoint reads as the configuration that wrote it, Unicode included."""
    config = RunConfig.from_mapping({"run": {"description": "বাংলা"}, "data": {"sources": [{"kind": "builtin"}]}})
    saved = config.to_yaml()
    assert "বাংলা" in saved
    assert RunConfig.from_yaml(write(tmp_path, saved)) == config


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["is empty", "`run: {name: my-run}`"]),
        ("# later", ["is empty"]),
        ("modle: {}", ["`modle`", "not a known key", "the nearest is `model`"]),
        ("model: {hidden_szie: 3}", ["`model.hidden_szie`", "the nearest is `hidden_size`"]),
        ("model: {xyz: 3}", ["`model.xyz`", "not a known key", "remove it or check its spelling"]),
        (f"model: {{{'hidden' * 100}: 3}}", ["`model.hiddenhidden", "not a known key"]),
        ("model: {hidden_size: wide}", ["`model.hidden_size`", "'wide'", "integer"]),
        ("model: {hidden_size: '128'}", ["`model.hidden_size`", "integer"]),
        ("model: {num_hidden_layers: 0}", ["`model.num_hidden_layers` (0)", "greater than 0"]),
        ("optimizer: {learning_rate: .nan}", ["`optimizer.learning_rate`", "finite"]),
        ("run: {name: 'Not a name'}", ["`run.name` ('Not a name'): must be at most 40 lower-case letters"]),
        ("run: {language: bengali}", ["`run.language` ('bengali'): must be a language code", "`bn`"]),
        ("data: {sources: []}", ["`data.sources`", "at least 1"]),
        ("data: {sources: [{kind: web}]}", ["`data.sources.0.kind`", "'web'", "builtin"]),
        ("model: {hidden_size: 100, num_attention_heads: 16}", ["`hidden_size` (100)", "`num_attention_heads` (16)"]),
        ("data: {sequence_length: 1024}", ["`data.sequence_length` (1024)", "`model.max_position_embeddings` (512)"]),
        ("data: {sources: [{kind: jsonl}]}", ["`jsonl`", "needs a `path`"]),
        ("data: {sources: [{kind: builtin, path: x}]}", ["`builtin`", "takes no `path`"]),
        ("data: {sources: [{kind: builtin, weight: 0}]}", ["`data.sources.0.weight` (0)", "greater than 0"]),
        ("schedule: {warmup_steps: 9, total_steps: 9}", ["`warmup_steps` (9)", "`total_steps` (9)"]),
        ("averaging: {averaging_timeout_s: 0}", ["`averaging.averaging_timeout_s` (0)", "greater than 0"]),
        ("averaging: {target_batch_size: 2}", ["`data.microbatch_size` (4)", "`averaging.target_batch_size` (2)"]),
        ("- a\n- list", ["the file", "dictionary"]),
        ("a: [", ["not valid YAML"]),
    ],
)
def test_each_mistake_is_one_clear_sentence(tmp_path: Path, text: str, parts: list[str]) -> None:
    """The message names the file, the key, the bad value and what is allowed, on one line."""
    message = mistake(tmp_path, text)
    assert str(tmp_path) in message
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < len(str(tmp_path)) + 500
    assert [part for part in parts if part not in message] == []


REMOVED = {"averaging": {"matchmaking_time_s": 15.0, "target_batch_size": 64}}


def test_a_setting_that_was_removed_is_ignored_with_one_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The operator's file and a checkpoint's load as before; the sentence names the file and the setting."""
    path = write(tmp_path, yaml.safe_dump(REMOVED))
    assert RunConfig.from_yaml(path) == RunConfig.from_mapping({"averaging": {"target_batch_size": 64}})
    said = "settings that this version no longer has are ignored: `averaging.matchmaking_time_s`."
    assert caplog.messages == [f"{path}: {said}"]


def test_a_removed_setting_leaves_the_others_checked(tmp_path: Path) -> None:
    """It is ignored in its own section only, and beside it a key is misspelt as before."""
    assert "`run.matchmaking_time_s` is not a known key" in mistake(tmp_path, "run: {matchmaking_time_s: 15}")
    both = "averaging: {matchmaking_time_s: 15, matchmaking_time: 15}"
    assert "`averaging.matchmaking_time` is not a known key" in mistake(tmp_path, both)


def test_a_peer_takes_an_older_coordinators_configuration(caplog: pytest.LogCaptureFixture) -> None:
    """It says nothing of a removed setting: a volunteer could not remove it."""
    sent = json.loads(RunConfig().to_json())
    sent["averaging"]["matchmaking_time_s"] = 15.0
    config = RunConfig.from_json(json.dumps(sent))
    assert config == RunConfig()
    assert "matchmaking_time_s" not in config.to_json()
    assert caplog.messages == []


def test_a_run_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    """A wrong path says which file could not be read, and why."""
    with pytest.raises(ConfigError, match=r"missing\.yaml: No such file"):
        RunConfig.from_yaml(tmp_path / "missing.yaml")


def test_a_configuration_cannot_be_changed() -> None:
    """Everything that was validated stays as it was."""
    config = RunConfig()
    with pytest.raises(ValueError, match="frozen"):
        config.run.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    "text",
    [
        "x: &a [1]\ny: *a\n",
        "x: !!bool maybe\n",
        "x: !!int ''\n",
        "x: 2026-99-99\n",
        "x: 0x" + "f" * 9000 + "\n",
        "x: " + "9" * 9000 + "\n",
        "x: " + "[" * 2000 + "\n",
        "!!python/object/apply:os.system ['true']\n",
        "x" * 5_000_000,
    ],
)
def test_yaml_that_breaks_its_reader_is_a_config_error(text: str, tmp_path: Path) -> None:
    """Aliases that multiply, values that are none, endless numbers and nesting, tags of code, megabytes."""
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_yaml(path)
    assert len(str(caught.value)) < 1000
