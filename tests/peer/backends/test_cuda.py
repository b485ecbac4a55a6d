"""Gradients on a real NVIDIA card are the CPU's, in each precision; collected only where there is such a card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from peer.backends.device_trial import working_device
from peer.backends.devices import TrialOutcome, choose_backend, compile_if_it_pays
from peer.backends.hardware import find_device, pick_precision
from peer.backends.memory import FoundSizes
from peer.backends.replicas import ReplicaBackend
from peer.backends.torch_cpu import TorchBackend
from peer.config.architectures import ARCHITECTURES
from peer.config.run import RunConfig
from peer.models.build import copy_model
from peer.runtime.devices import Precision, Stay
from tests.support.tiny_albert import gradients, random_batch, tiny_config, tiny_model
from tests.support.tiny_families import family_batch, family_config, family_model

# Of Inductor's own making, as in test_compilation.py.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning")
CARD = torch.device("cuda", 0)
EXACT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
FAR: dict[Precision, float] = {"fp32": 1e-5, "fp16": 5e-3, "bf16": 3e-2}  # relative to the gradient's norm


def distance(found: torch.nn.Module, expected: torch.nn.Module) -> float:
    """Return ‖found - expected‖ / ‖expected‖ over all gradients."""
    ours, theirs = gradients(found), gradients(expected)
    apart = torch.cat([(ours[name] - theirs[name]).flatten() for name in theirs])
    return float(apart.norm() / torch.cat([each.flatten() for each in theirs.values()]).norm())


def on_the_card(config: RunConfig, precision: Precision = "fp32", replicas: int = 1) -> tuple[ReplicaBackend, Any]:
    model = tiny_model(config)
    return ReplicaBackend(config, model, [CARD] * replicas, precision), model


@pytest.mark.parametrize("precision", FAR)
@pytest.mark.parametrize("replicas", [1, 2])
def test_gradients_are_the_cpus(precision: Precision, replicas: int) -> None:
    """Losses and gradients of padded and of full microbatches, from pinned memory, on one replica and on two."""
    config = tiny_config(**EXACT)
    alone = tiny_model(config)
    one, (backend, model) = TorchBackend(config, alone), on_the_card(config, precision, replicas)
    for batch in random_batch(3, 5, padded=True), random_batch(8, 6):
        expected, result = one.accumulate(batch), backend.accumulate(backend.stage(batch))
        assert result.finite
        assert result.loss == pytest.approx(expected.loss, rel=FAR[precision])
        assert result.sop_loss == pytest.approx(expected.sop_loss, rel=10 * FAR[precision])
    backend.collect()
    assert distance(model, alone) < FAR[precision]


@pytest.mark.parametrize("precision", FAR)
@pytest.mark.parametrize("family", [name for name in ARCHITECTURES if name != "reformer"])  # it hashes at random
def test_each_familys_gradients_are_the_cpus(family: str, precision: Precision) -> None:
    """Without dropout, which two devices draw differently."""
    config = family_config(family, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    alone = family_model(config)
    model = copy_model(alone)
    backend = choose_backend(find_device("cuda"), precision, config, model)(1)
    batch = family_batch(config, 5, 4)
    expected, result = TorchBackend(config, alone).accumulate(batch), backend.accumulate(backend.stage(batch))
    backend.collect()
    assert result.loss == pytest.approx(expected.loss, rel=FAR[precision])
    assert distance(model, alone) < 2 * FAR[precision]


def test_replicas_take_the_parameters_that_the_swarm_has_changed() -> None:
    """After `synchronize` the card computes with them, and from no gradients."""
    config = tiny_config(**EXACT)
    backend, model = on_the_card(config)
    backend.accumulate(random_batch(1, 4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    backend.synchronize()
    moved = copy_model(model)
    TorchBackend(config, moved).accumulate(random_batch(2, 4))
    backend.accumulate(random_batch(2, 4))
    backend.collect()
    assert distance(model, moved) < FAR["fp32"]


def test_an_overflow_in_fp16_loses_no_sample() -> None:
    """A scale far too large overflows, is halved until it fits, and the gradient is whole."""
    config = tiny_config(**EXACT)
    alone = tiny_model(config)
    backend, model = on_the_card(config, "fp16")
    backend._replicas[0]._passes.scale.value = 2.0**30
    TorchBackend(config, alone).accumulate(random_batch(1, 4))
    assert backend.accumulate(random_batch(1, 4)).finite
    backend.collect()
    assert backend._replicas[0]._passes.scale.value < 2.0**30
    assert distance(model, alone) < FAR["fp16"]


def test_a_microbatch_that_does_not_fit_is_computed_in_parts() -> None:
    """PyTorch's own limit of memory stands for a small card: the gradient is that of the whole microbatch."""
    config = RunConfig.from_mapping(
        {
            "model": {"embedding_size": 64, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}
            | {"num_hidden_layers": 8, "max_position_embeddings": 32}
            | EXACT,
            "data": {"sequence_length": 24},
        }
    )
    batch = random_batch(1, 512)
    model = tiny_model(config)
    backend = ReplicaBackend(config, model, [CARD])
    before = torch.cuda.memory_allocated(CARD)
    backend.rehearse(batch)
    peak = torch.cuda.max_memory_allocated(CARD) - before
    whole = torch.cuda.get_device_properties(CARD).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((before + 0.6 * peak) / whole, CARD)
    try:
        result = backend.accumulate(batch)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, CARD)
    at_once = backend._replicas[0]._passes._at_once
    assert at_once is not None
    assert at_once < 512
    assert (result.samples, result.finite) == (512, True)
    backend.collect()
    expected = copy_model(model)
    other = ReplicaBackend(config, expected, [CARD])
    other.accumulate(batch)
    other.collect()
    assert distance(model, expected) < FAR["fp32"]


def test_as_many_samples_as_fit_are_found_by_trying() -> None:
    """On a large card all that are of use; the fraction of the memory is given back."""
    config = tiny_config(**EXACT)
    backend, _ = on_the_card(config)
    assert backend.microbatch_size(4, 96, lambda samples: random_batch(1, samples)) == 96


def test_compiled_layers_compute_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--compile on` keeps them on a card, and gradients stay the CPU's to bfloat16."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    torch.compiler.reset()
    config = tiny_config(**EXACT)
    alone = tiny_model(config)
    backend, model = on_the_card(config, "bf16")
    told: list[str] = []
    make_batch: Callable[[], Any] = lambda: random_batch(1, 6)  # noqa: E731
    ticks = iter(range(1000))
    compile_if_it_pays(
        backend, "on", Stay(10_000, None), "work", make_batch, tmp_path, told.append, lambda: float(next(ticks))
    )
    assert backend.layers.on, told
    assert FoundSizes(tmp_path / "compiled.json").get(f"PyTorch {torch.__version__}, work") != TrialOutcome.FAILED
    TorchBackend(config, alone).accumulate(random_batch(2, 6))
    backend.accumulate(backend.stage(random_batch(2, 6)))
    backend.collect()
    assert backend.layers.on
    assert distance(model, alone) < FAR["bf16"]
    torch.compiler.reset()


def test_the_card_is_tried_and_chosen() -> None:
    """`auto` takes it, with bfloat16 where it has that, and says its name."""
    device, fault = working_device("auto")
    assert device.startswith("cuda:0")
    assert fault == ""
    precision = pick_precision("auto", (CARD,))
    assert precision in ("bf16", "fp16")
    backend, _ = on_the_card(tiny_config(), precision)
    assert torch.cuda.get_device_properties(CARD).name in backend.description
    assert backend.description.endswith(precision)
