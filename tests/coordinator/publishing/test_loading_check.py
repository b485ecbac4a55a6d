"""What the fresh process computes of an exported folder, for every family that a run may train."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from coordinator.checkpoints.probe import probe_loss, probe_tensors
from coordinator.checkpoints.writing import take_snapshot
from coordinator.publishing.loading_check import load, probe_losses
from coordinator.publishing.soundness import is_same
from peer.config.architectures import ARCHITECTURES
from peer.config.run import RunConfig
from peer.models.build import checkpoint_config
from peer.models.checkpoint_state import WEIGHTS
from tests.support.tiny_families import NAMES, VARIANTS, family_batch, family_config, family_model

WITH_OBJECTIVES = [
    (name, objective) for name in NAMES for objective in ARCHITECTURES[VARIANTS.get(name, (name, {}))[0]].objectives
]


@pytest.mark.parametrize(("name", "objective"), WITH_OBJECTIVES)
def test_plain_transformers_finds_the_loss_that_the_keeper_writes(name: str, objective: str, tmp_path: Path) -> None:
    """From the folder alone, with the probe as it is stored; other weights give another loss."""
    config = family_config(name)
    config = RunConfig.from_mapping(config.model_dump(mode="json") | {"objective": {"name": objective}})
    model, batch = family_model(config), family_batch(config)
    snapshot = take_snapshot(1, model, torch.optim.SGD(model.parameters()))
    save_file(dict(snapshot.model), tmp_path / WEIGHTS, metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(checkpoint_config(model)))
    expected = probe_loss(model, batch, config)
    probe = dict(probe_tensors(batch, config))
    assert is_same(expected, probe_losses(load(tmp_path), probe)["loss"])
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(3.0)
    save_file(dict(take_snapshot(1, model, torch.optim.SGD(model.parameters())).model), tmp_path / WEIGHTS)
    assert not is_same(expected, probe_losses(load(tmp_path), probe)["loss"])


def test_a_configuration_that_names_no_model_is_refused(tmp_path: Path) -> None:
    """Whatever else transformers has under that name is not called."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["BertConfig"]}))
    with pytest.raises(ValueError, match="no model of transformers"):
        load(tmp_path)
