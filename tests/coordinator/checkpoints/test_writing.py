"""Checkpoints: complete or absent, verified, restored exactly."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from auth.errors import StorageError
from coordinator.checkpoints import writing as checkpoints
from coordinator.checkpoints.manifest import StoredCheckpoint, newest_verified, remove_steps, stored_steps, verify
from coordinator.checkpoints.writing import StateSnapshot, restore_verified, take_snapshot, write_checkpoint
from peer.config.architectures import ARCHITECTURES
from peer.config.run import RunConfig
from peer.models import checkpoint_state as saved_state
from peer.models.build import build_model
from peer.models.checkpoint_state import restore_model, restore_optimizer
from peer.models.optimizer_setup import build_optimizer, parameter_groups
from peer.models.optimizers import OuterNesterov
from tests.support.tiny_families import SPECIAL, VOCABULARY, family_config, family_model


class TiedModel(torch.nn.Module):
    """Two layers of which the second shares the first one's weight, as ALBERT's decoder does."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight


def trained_model() -> tuple[TiedModel, torch.optim.Optimizer]:
    """A model and an optimizer with some history."""
    torch.manual_seed(0)
    model = TiedModel()
    optimizer = torch.optim.Adam(model.parameters())
    model.second(model.first(torch.ones(2, 4))).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.fixture
def tokenizer_dir(tmp_path: Path) -> Path:
    """A directory with one file in a tokenizer's place."""
    path = tmp_path / "tokenizer"
    path.mkdir()
    (path / "tokenizer.json").write_text("{}")
    return path


def write(directory: Path, tokenizer_dir: Path, step: int, snapshot: StateSnapshot | None = None) -> StoredCheckpoint:
    """Write a checkpoint of `step`."""
    if snapshot is None:
        model, optimizer = trained_model()
        snapshot = take_snapshot(step, model, optimizer)
    return write_checkpoint(
        directory,
        snapshot,
        run="demo",
        era=1,
        texts={"run.yaml": "run: {}\n"},
        tokenizer_dir=tokenizer_dir,
        probe={"input_ids": torch.zeros(1, 2, dtype=torch.int64)},
        probe_loss=1.5,
        created_at=5.0,
    )


def take_made_up_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    """One global step from made-up averages."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


def go_on(
    models: list[torch.nn.Module], optimizers: list[torch.optim.Optimizer], tmp_path: Path, tokenizer_dir: Path
) -> None:
    """Take three steps with the first model, restore them into the second, and take two more with both."""
    for seed in (1, 2, 3):
        take_made_up_step(models[0], optimizers[0], seed)
    stored = write(tmp_path / "c", tokenizer_dir, 3, take_snapshot(3, models[0], optimizers[0]))
    restore_model(models[1], stored.path)
    restore_optimizer(models[1], optimizers[1], stored.path)
    for seed in (4, 5):
        for model, optimizer in zip(models, optimizers, strict=True):
            take_made_up_step(model, optimizer, seed)
    for went_on, restored in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(went_on, restored)


def test_an_outer_momentum_goes_on_exactly(tmp_path: Path, tokenizer_dir: Path) -> None:
    """Where peers take local steps, the steps after a restart are those that would have been taken, bit by bit."""
    torch.manual_seed(1)
    models: list[torch.nn.Module] = [TiedModel(), TiedModel()]
    go_on(models, [OuterNesterov(model.parameters()) for model in models], tmp_path, tokenizer_dir)


@pytest.mark.parametrize("name", ["lamb", "adamw", "stable_adamw", "muon"])
def test_a_resumed_run_goes_on_exactly(name: str, tmp_path: Path, tokenizer_dir: Path) -> None:
    """With every optimizer of a run file likewise."""
    config = RunConfig.from_mapping({**family_config("bert").model_dump(), "optimizer": {"name": name}})
    models: list[torch.nn.Module] = [family_model(config), build_model(config, VOCABULARY, SPECIAL)]
    go_on(models, [build_optimizer(config, parameter_groups(each, config)) for each in models], tmp_path, tokenizer_dir)


def test_another_optimizers_state_is_refused(tmp_path: Path, tokenizer_dir: Path) -> None:
    """A run that changed its optimizer to one of other statistics says so, and does not go on with half of them."""
    before, after = (
        RunConfig.from_mapping({**family_config("bert").model_dump(), "optimizer": {"name": name}})
        for name in ("adamw", "muon")
    )
    model = family_model(before)
    stored = write(
        tmp_path / "c",
        tokenizer_dir,
        3,
        take_snapshot(3, model, build_optimizer(before, parameter_groups(model, before))),
    )
    with pytest.raises(StorageError, match="does not fit this run's model and optimizer"):
        restore_optimizer(model, build_optimizer(after, parameter_groups(model, after)), stored.path)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_familys_model_comes_back(name: str, tmp_path: Path, tokenizer_dir: Path) -> None:
    """Each weight is stored once, however often a family ties it, and restored wherever it belongs."""
    config = family_config(name)
    model = family_model(config)
    optimizer = build_optimizer(config, parameter_groups(model, config))
    stored = write(tmp_path / "c", tokenizer_dir, 7, take_snapshot(7, model, optimizer))
    weights = load_file(stored.path / "model.safetensors")
    assert sum(tensor.numel() for tensor in weights.values()) == sum(p.numel() for p in model.parameters())
    other = build_model(config, VOCABULARY, SPECIAL)
    restore_model(other, stored.path)
    restore_optimizer(other, build_optimizer(config, parameter_groups(other, config)), stored.path)
    assert all(torch.equal(tensor, other.state_dict()[key]) for key, tensor in model.state_dict().items())


def test_snapshot_is_a_copy() -> None:
    """A later step does not change a snapshot: nothing in it aliases the live tensors."""
    model, optimizer = trained_model()
    snapshot = take_snapshot(1, model, optimizer)
    before = {name: tensor.clone() for name, tensor in snapshot.model.items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(snapshot.model[name], tensor) for name, tensor in before.items())


def test_damaged_checkpoint_is_passed_over(tmp_path: Path, tokenizer_dir: Path) -> None:
    """A file that differs by one byte makes its checkpoint invalid; the one before is the newest verified."""
    write(tmp_path, tokenizer_dir, 1)
    newest = write(tmp_path, tokenizer_dir, 2)
    weights = newest.path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(StorageError, match=r"model\.safetensors does not match"):
        verify(newest.path)
    found = newest_verified(tmp_path)
    assert found is not None
    assert found.manifest.step == 1


def test_missing_file_is_noticed(tmp_path: Path, tokenizer_dir: Path) -> None:
    """A checkpoint that lost a file is not complete."""
    stored = write(tmp_path, tokenizer_dir, 1)
    (stored.path / "optimizer.safetensors").unlink()
    with pytest.raises(StorageError, match="no complete checkpoint"):
        verify(stored.path)


def test_manifest_cannot_name_files_elsewhere(tmp_path: Path, tokenizer_dir: Path) -> None:
    """A manifest that points out of its directory is refused."""
    stored = write(tmp_path, tokenizer_dir, 1)
    manifest = stored.path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"run.yaml"', '"../run.yaml"'))
    with pytest.raises(StorageError):
        verify(stored.path)


def test_crash_while_writing_leaves_the_previous_one(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the disk fills up in the middle, there is one clear error and the previous checkpoint is intact."""
    write(tmp_path, tokenizer_dir, 1)

    def disk_full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "sync", disk_full)
    with pytest.raises(StorageError, match="No space left on device"):
        write(tmp_path, tokenizer_dir, 2)
    assert [path.name for path in tmp_path.glob(".step-*")] == []
    found = newest_verified(tmp_path)
    assert found is not None
    assert found.manifest.step == 1


def test_same_step_again_replaces_it(tmp_path: Path, tokenizer_dir: Path) -> None:
    """After a return to an earlier checkpoint the same step is written anew."""
    write(tmp_path, tokenizer_dir, 3)
    again = write(tmp_path, tokenizer_dir, 3)
    assert verify(again.path) == again
    assert sorted(path.name for path in tmp_path.glob("*step-*")) == ["step-00000003"]


def test_removed_steps_are_gone(tmp_path: Path, tokenizer_dir: Path) -> None:
    """What is removed is no longer listed, the others are."""
    for step in (5, 10, 15):
        write(tmp_path, tokenizer_dir, step)
    remove_steps(tmp_path, [5, 15])
    assert stored_steps(tmp_path) == [10]


def test_another_model_is_refused(tmp_path: Path, tokenizer_dir: Path) -> None:
    """Weights of another name or shape raise an error that names the checkpoint."""
    stored = write(tmp_path, tokenizer_dir, 1)
    wider = TiedModel()
    wider.first = torch.nn.Linear(5, 5)
    for model in torch.nn.Linear(3, 3), wider:
        with pytest.raises(StorageError, match="step-00000001"):
            restore_model(model, stored.path)


def test_verified_weights_are_those_of_the_manifest(tmp_path: Path, tokenizer_dir: Path) -> None:
    """Just the checkpoint with this digest is taken, and its manifest says which era wrote it."""
    stored = write(tmp_path, tokenizer_dir, 1)
    model = TiedModel()
    assert restore_verified(model, stored.path, stored.manifest_sha256) == stored.manifest
    assert torch.equal(model.first.weight, load_file(stored.path / "model.safetensors")["first.weight"])
    with pytest.raises(StorageError, match="another checkpoint"):
        restore_verified(model, stored.path, "0" * 64)


def test_damaged_or_missing_weights_are_refused(tmp_path: Path, tokenizer_dir: Path) -> None:
    """A flipped bit in the weights, or a pruned directory, is an error; the optimizer's state does not matter."""
    stored = write(tmp_path, tokenizer_dir, 1)
    (stored.path / "optimizer.safetensors").unlink()
    restore_verified(TiedModel(), stored.path, stored.manifest_sha256)
    weights = stored.path / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(StorageError, match="does not match"):
        restore_verified(TiedModel(), stored.path, stored.manifest_sha256)
    with pytest.raises(StorageError, match="no complete checkpoint"):
        restore_verified(TiedModel(), tmp_path / "step-00000009", stored.manifest_sha256)


def test_checkpoint_that_vanishes_while_it_is_read_is_refused(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper may prune it between the check and the loading."""
    stored = write(tmp_path, tokenizer_dir, 1)

    def load_too_late(path: Path) -> None:
        path.unlink()
        load_file(path)

    monkeypatch.setattr(saved_state, "load_file", load_too_late)
    with pytest.raises(StorageError, match="no complete checkpoint"):
        restore_verified(TiedModel(), stored.path, stored.manifest_sha256)


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_only_plain_files_make_a_checkpoint(tmp_path: Path, tokenizer_dir: Path, name: str, kind: str) -> None:
    """A link, also to the right content, or a pipe, which would never end, is no file of a checkpoint."""
    stored = write(tmp_path / "c", tokenizer_dir, 7)
    aside = tmp_path / "aside"
    (stored.path / name).rename(aside)
    if kind == "link":
        (stored.path / name).symlink_to(aside)
    else:
        os.mkfifo(stored.path / name)
    with pytest.raises(StorageError):
        verify(stored.path)


@pytest.mark.parametrize("content", ["[" * 20_000, " " * 2**20 + "{}", "{}", "\0", '{"step": ' + "9" * 5000 + "}"])
def test_a_manifest_from_elsewhere_is_read_with_care(tmp_path: Path, tokenizer_dir: Path, content: str) -> None:
    """Nested too deeply, too long, or of another shape: the checkpoint counts as damaged."""
    stored = write(tmp_path / "c", tokenizer_dir, 7)
    (stored.path / "manifest.json").write_text(content)
    with pytest.raises(StorageError):
        verify(stored.path)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_a_damaged_safetensors_file_is_an_error_of_ours(tmp_path: Path, tokenizer_dir: Path, name: str) -> None:
    """Also where nothing was compared with the manifest before."""
    stored = write(tmp_path / "c", tokenizer_dir, 7)
    (stored.path / name).write_bytes(b"\xff" * 64)
    model, optimizer = trained_model()
    restore = (
        partial(restore_model, model) if name == "model.safetensors" else partial(restore_optimizer, model, optimizer)
    )
    with pytest.raises(StorageError, match="safetensors"):
        restore(stored.path)
