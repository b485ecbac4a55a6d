"""`manyhands export`: what lies in the folder afterwards, and what happens to weights that are not what they say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auth.errors import ConfigError, StorageError, UnsoundWeightsError
from coordinator.checkpoints.export import exporting
from coordinator.checkpoints.manifest import MANIFEST, StoredCheckpoint, file_entry, verify
from coordinator.cli.export_model import app
from coordinator.context.open_run import OpenRun
from coordinator.members.audit import audit_log
from coordinator.publishing.soundness import LoadingResult, difference
from tests.support.sound_checkpoints import add_sound_checkpoint, publish_to, record

pytestmark = pytest.mark.usefixtures("forked")


def export(*arguments: object) -> str:
    """Run the command; raises what it raises."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def rewrite(stored: StoredCheckpoint, name: str, text: str) -> None:
    """Put another file into the checkpoint, and its digest into the manifest."""
    (stored.path / name).write_text(text)
    files = {**stored.manifest.files, name: file_entry(stored.path / name)}
    manifest = stored.manifest.model_copy(update={"files": files})
    (stored.path / MANIFEST).write_text(manifest.model_dump_json())


def test_a_run_exports_its_newest_that_may_be_published(opened_run: OpenRun, tmp_path: Path) -> None:
    """As JSON the command tells which, and the folder holds weights, tokenizer and card, and no optimizer."""
    stored = add_sound_checkpoint(opened_run.directory, opened_run.database, 5)
    record(opened_run.database, add_sound_checkpoint(opened_run.directory, opened_run.database, 6), withheld="bad")
    facts = json.loads(export(opened_run.directory.path, tmp_path / "out", "--json"))
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert facts["step"] == 5
    assert facts["loss"] == pytest.approx(stored.manifest.probe_loss, abs=1e-3)
    assert {"model.safetensors", "tokenizer.json", "README.md", "manifest.json"} <= names
    assert not {"optimizer.safetensors", "run.yaml"} & names
    verify(tmp_path / "out")


def test_a_checkpoint_from_elsewhere_is_exported_without_its_run(opened_run: OpenRun, tmp_path: Path) -> None:
    """A downloaded checkpoint has all that it takes."""
    stored = add_sound_checkpoint(opened_run.directory, opened_run.database, 5)
    stored.path.rename(tmp_path / "downloaded")
    assert "Step 5" in export(tmp_path / "downloaded", tmp_path / "out")
    assert "## Training data" in (tmp_path / "out" / "README.md").read_text()


def test_gibberish_is_not_exported(opened_run: OpenRun, tmp_path: Path) -> None:
    """Weights that do not give the manifest's loss are an error with its own exit code, and no folder stays."""
    stored = add_sound_checkpoint(opened_run.directory, opened_run.database, 5, said=1.0)
    with pytest.raises(UnsoundWeightsError, match=r"the manifest says 1\.0000"):
        export(stored.path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_weights_that_cannot_be_loaded_are_not_exported(opened_run: OpenRun, tmp_path: Path) -> None:
    """A configuration that names no model: the fresh process's own last words are told."""
    stored = add_sound_checkpoint(opened_run.directory, opened_run.database, 5)
    rewrite(stored, "config.json", '{"architectures": ["BertConfig"]}')
    with pytest.raises(UnsoundWeightsError, match=r"step 5 cannot be loaded .*no model of transformers"):
        export(stored.path, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []


def test_what_is_damaged_or_removed_meanwhile_is_noticed(opened_run: OpenRun, tmp_path: Path) -> None:
    """The keeper may prune or replace a checkpoint while it is exported."""
    stored = add_sound_checkpoint(opened_run.directory, opened_run.database, 5)
    (stored.path / "config.json").write_text("{}")
    with pytest.raises(StorageError, match=r"config\.json does not match"), exporting(stored, tmp_path / "out", {}):
        pass
    shutil.rmtree(stored.path)
    with pytest.raises(StorageError, match=r"05: .* cannot be copied"), exporting(stored, tmp_path / "out", {}):
        pass


def test_a_linked_export_never_writes_into_the_checkpoint(opened_run: OpenRun, tmp_path: Path) -> None:
    """A card beside a tokenizer that has a README.md of its own."""
    (opened_run.directory.tokenizer_dir / "README.md").write_text("of the tokenizer")
    stored = add_sound_checkpoint(opened_run.directory, opened_run.database, 5)
    with exporting(stored, tmp_path / "out", {"README.md": "the card"}, link=True):
        pass
    assert (tmp_path / "out" / "README.md").read_text() == "the card"
    assert (tmp_path / "out" / "model.safetensors").stat().st_nlink == 2
    verify(stored.path)


def test_pushing_goes_to_a_place_that_the_run_knows(opened_run: OpenRun, tmp_path: Path) -> None:
    """One of `publications`, whose secret is there; any other is refused with the list."""
    place = f"file://{tmp_path}/place"
    publish_to(opened_run.directory.path, {"to": place})
    stored = add_sound_checkpoint(opened_run.directory, opened_run.database, 5)
    assert "Published: " in export(stored.path, tmp_path / "out", "--push", place)
    assert (tmp_path / "place" / "latest.json").is_file()
    with pytest.raises(ConfigError, match="it names: file://"):
        export(stored.path, tmp_path / "again", "--push", "hf://us/model")
    assert [(row.act, row.subject) for row in audit_log(opened_run.database, 9)] == [("publish", place)]


def test_what_is_withheld_is_not_pushed(opened_run: OpenRun, tmp_path: Path) -> None:
    """Whoever names it gets the reason, and no folder."""
    publish_to(opened_run.directory.path, {"to": f"file://{tmp_path}/place"})
    stored = add_sound_checkpoint(opened_run.directory, opened_run.database, 5)
    record(opened_run.database, stored, withheld="its loss is not finite")
    with pytest.raises(ConfigError, match="may not be published: its loss is not finite"):
        export(stored.path, tmp_path / "out", "--push", f"file://{tmp_path}/place")
    assert not (tmp_path / "out").exists()


def test_onnx_without_optimum_is_one_sentence(
    opened_run: OpenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said before anything is written."""
    monkeypatch.setenv("PATH", "/nowhere")
    stored = add_sound_checkpoint(opened_run.directory, opened_run.database, 5)
    with pytest.raises(ConfigError, match="pipx install"):
        export(stored.path, tmp_path / "out", "--onnx")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("expected", "found", "tokens", "sound"),
    [(2.0, 2.001, 100, True), (2.0, 2.1, 100, False), (2.0, float("nan"), 100, False), (None, 2.0, 100, False),
     (2.0, 2.0, 101, False)],
)  # fmt: skip
def test_what_counts_as_the_same(expected: float | None, found: float, tokens: int, sound: bool) -> None:
    """A loss within rounding, and a tokenizer that fits the model."""
    assert (difference(expected, LoadingResult(found, found, 100, tokens)) == "") is sound
