"""Writing of checkpoints to a temporary folder, which is verified and then renamed.

A checkpoint is a folder such as `step-00000012`, which plain transformers can load, with the files
for resuming:

  config.json, model.safetensors, tokenizer files   for from_pretrained
  optimizer.safetensors                             "<parameter>/<statistic>" for each state tensor;
                                                    "<parameter>/value" for weights that model.safetensors lacks
  generator.json, generator.safetensors             generator of ELECTRA, for ElectraForMaskedLM
  run.yaml                                          the whole run configuration
  probe.safetensors                                 fixed batch; its loss with these weights is in the manifest
  manifest.json                                     step, era, probe loss, SHA-256 and size of every other file
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import PreTrainedModel

from auth.errors import StorageError
from auth.files import sync
from coordinator.checkpoints.manifest import FORMAT_VERSION, MANIFEST, Manifest, StoredCheckpoint, file_entry, verify
from coordinator.run.checkpoint_names import checkpoint_name
from peer.models.build import checkpoint_config
from peer.models.checkpoint_state import OPTIMIZER, VALUE, WEIGHTS, restore_model, weight_files
from peer.models.replaced_tokens import ReplacedTokens

GENERATOR_CONFIG, GENERATOR_WEIGHTS = "generator.json", "generator.safetensors"
RESERVE_BYTES = 16 * 2**20  # disk space to leave free for the database and the logs


@dataclass(frozen=True)
class StateSnapshot:
    """A copy of the training state on the CPU, taken between two global steps."""

    step: int
    model: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, torch.Tensor]
    generator: Mapping[str, torch.Tensor] = field(default_factory=dict)  # ELECTRA's generator; empty for other models


def take_snapshot(step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> StateSnapshot:
    """Copy the training state; the caller must ensure that no step runs meanwhile."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    statistics = {
        f"{names[id(parameter)]}/{key}": value.detach().cpu().clone()
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
        if isinstance(value, torch.Tensor)
    }
    if not isinstance(model, ReplacedTokens):
        return StateSnapshot(step, _copied(model.state_dict()), statistics)
    values = {f"{name}/{VALUE}": value for name, value in _copied(model.unpublished()).items()}
    return StateSnapshot(step, _copied(model.published()), statistics | values, _copied(model.generator.state_dict()))


def config_files(model: PreTrainedModel) -> dict[str, str]:
    """Return the transformers configurations of a checkpoint's models, keyed by file name."""
    files = {"config.json": checkpoint_config(model)}
    if isinstance(model, ReplacedTokens):
        files[GENERATOR_CONFIG] = checkpoint_config(model.generator)
    return {name: json.dumps(content, indent=2) for name, content in files.items()}


def _copied(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    weights, seen = {}, set()
    for name, tensor in state.items():  # store tied weights once, as transformers does
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            weights[name] = tensor.detach().cpu().clone().contiguous()
    return weights


def write_checkpoint(
    directory: Path,
    snapshot: StateSnapshot,
    *,
    run: str,
    era: int,
    texts: Mapping[str, str],
    tokenizer_dir: Path,
    probe: Mapping[str, torch.Tensor],
    probe_loss: float | None,
    created_at: float,
) -> StoredCheckpoint:
    """Write a checkpoint to a temporary folder, then sync, verify and rename the folder.

    `texts` maps names of additional files to their contents. Raises `StorageError` on failure.
    """
    target = directory / checkpoint_name(snapshot.step)
    aside = directory / f".{target.name}.writing"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        _require_space(aside, snapshot)
        save_file(dict(snapshot.model), aside / WEIGHTS, metadata={"format": "pt"})
        save_file(dict(snapshot.optimizer), aside / OPTIMIZER)
        if snapshot.generator:
            save_file(dict(snapshot.generator), aside / GENERATOR_WEIGHTS, metadata={"format": "pt"})
        save_file(dict(probe), aside / "probe.safetensors")
        for file in sorted(tokenizer_dir.iterdir()):
            shutil.copyfile(file, aside / file.name)
        for name, text in texts.items():
            (aside / name).write_text(text, encoding="utf-8")
        files = {file.name: file_entry(file) for file in sorted(aside.iterdir())}
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            run=run,
            step=snapshot.step,
            era=era,
            created_at=created_at,
            probe_loss=probe_loss,
            files=files,
        )
        (aside / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
        for file in aside.iterdir():
            sync(file)
        sync(aside)
        verify(aside)
        replaced = directory / f".{target.name}.replaced"
        if target.exists():  # may hold a checkpoint of the same step from before a rewind
            target.replace(replaced)
        aside.replace(target)
        sync(directory)
        shutil.rmtree(replaced, ignore_errors=True)
    except (OSError, SafetensorError) as error:  # safetensors raises SafetensorError if the disk is full
        shutil.rmtree(aside, ignore_errors=True)
        raise StorageError(
            f"The checkpoint of step {snapshot.step} could not be written to {directory} "
            f"({getattr(error, 'strerror', None) or error}): free some space; the previous checkpoint is intact."
        ) from error
    return verify(target)


def _require_space(directory: Path, snapshot: StateSnapshot) -> None:
    """Raise `OSError` if the checkpoint would leave less than `RESERVE_BYTES` free."""
    parts = snapshot.model, snapshot.optimizer, snapshot.generator
    size_bytes = sum(tensor.nbytes for part in parts for tensor in part.values())
    if shutil.disk_usage(directory).free < size_bytes + RESERVE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def restore_verified(model: torch.nn.Module, path: Path, manifest_sha256: str) -> Manifest:
    """Load a checkpoint's weights; raises `StorageError` if the digest is not `manifest_sha256`.

    The digest is checked again after loading, because the folder may be replaced meanwhile.
    """
    stored = verify(path, files=weight_files(model))
    restore_model(model, path)
    if not verify(path, files=()).manifest_sha256 == stored.manifest_sha256 == manifest_sha256:
        raise StorageError(f"{path.name}: another checkpoint of that step has taken its place.")
    return stored.manifest
