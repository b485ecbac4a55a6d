"""Several devices are one peer: CPU devices stand for GPUs here, each with a replica and a thread of its own."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from auth.errors import MemoryLimitError
from peer.backends.passes import Counts, Passes
from peer.backends.replicas import ReplicaBackend
from peer.backends.torch_cpu import TorchBackend
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch
from peer.models.build import copy_model
from peer.models.objectives import Losses, compute_losses
from tests.support.tiny_albert import gradients, random_batch, tiny_config, tiny_model
from tests.support.tiny_families import family_batch, family_config, family_model
from tests.support.waiting import PATIENCE_S

CPU = torch.device("cpu")
EXACT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def exact_config() -> RunConfig:
    return tiny_config(**EXACT)


def replicated(config: RunConfig, replicas: int, **more: Any) -> tuple[ReplicaBackend, torch.nn.Module]:
    model = tiny_model(config)
    return ReplicaBackend(config, model, [CPU] * replicas, **more), model


def uneven_batch(samples: int) -> Batch:
    """Padded, and with very unequal numbers of labels: the first sample has hardly any."""
    batch = random_batch(3, samples, padded=True)
    kept = torch.arange(len(batch.labels)) > 2
    kept[0] = True
    changes = {"label_positions": batch.label_positions[kept], "labels": batch.labels[kept]}
    return Batch(**{**vars(batch), **changes})


def assert_same_gradients(found: torch.nn.Module, expected: torch.nn.Module) -> None:
    """To 1e-6 of each gradient's own size."""
    ours = gradients(found)
    for name, gradient in gradients(expected).items():
        scale = max(1.0, float(gradient.abs().max()))
        assert float((ours[name] - gradient).abs().max()) <= 1e-6 * scale, name


@pytest.mark.parametrize(("replicas", "samples"), [(1, 5), (2, 5), (3, 7), (4, 2)])
def test_gradients_are_those_of_one_device(replicas: int, samples: int) -> None:
    """However a microbatch is divided, with unequal numbers of labels or more devices than samples."""
    config, alone = exact_config(), tiny_model(exact_config())
    one = TorchBackend(config, alone)
    backend, model = replicated(config, replicas)
    for batch in uneven_batch(samples), random_batch(8, samples):
        expected, result = one.accumulate(batch), backend.accumulate(batch)
        assert (result.samples, result.finite) == (samples, True)
        assert result.loss == pytest.approx(expected.loss, rel=1e-6)
        assert result.mlm_loss == pytest.approx(expected.mlm_loss, rel=1e-6)
        assert result.sop_loss == pytest.approx(expected.sop_loss, rel=1e-6)
    backend.collect()
    assert_same_gradients(model, alone)


def test_the_swarms_buffers_are_added_to_once() -> None:
    """A round that is tried again collects nothing twice; what comes in between is not lost."""
    config = exact_config()
    one, (backend, model) = tiny_model(config), replicated(config, 2)
    alone = TorchBackend(config, one)
    buffers = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        parameter.grad = buffers[name]
    for batch in random_batch(1, 4), random_batch(2, 3):
        alone.accumulate(batch)
        backend.accumulate(batch)
        backend.collect()
        backend.collect()
    assert all(parameter.grad is buffers[name] for name, parameter in model.named_parameters())
    assert_same_gradients(model, one)


def test_replicas_go_on_with_the_parameters_that_the_swarm_has_changed() -> None:
    """After `synchronize` they compute with the new ones, and nothing from before is left."""
    config = exact_config()
    backend, model = replicated(config, 2)
    backend.accumulate(random_batch(1, 4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    backend.synchronize()
    moved = copy_model(model)  # type: ignore[arg-type]
    expected = TorchBackend(config, moved).accumulate(random_batch(2, 4))
    result = backend.accumulate(random_batch(2, 4))
    backend.collect()
    assert result.loss == pytest.approx(expected.loss, rel=1e-6)
    assert_same_gradients(model, moved)


@pytest.fixture
def fail_on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Batch], Losses | None]], None]:
    """Lets a part of a microbatch fail as a test says; None: it is computed."""

    def install(failure: Callable[[Batch], Losses | None]) -> None:
        def compute(model: Any, batch: Batch, config: RunConfig) -> Losses:
            return failure(batch) or compute_losses(model, batch, config)

        monkeypatch.setattr("peer.backends.passes.compute_losses", compute)

    return install


def marked(batch: Batch) -> Batch:
    """The batch with its last sample, which the last replica gets, recognizable."""
    batch.input_ids[-1, 0] = 77
    return batch


def is_marked(part: Batch) -> bool:
    return bool((part.input_ids[:, 0] == 77).any())


def test_a_replica_that_is_not_finite_drops_the_microbatch_for_all(fail_on: Any) -> None:
    """What the others had computed of it is not added either."""
    config = exact_config()
    one, (backend, model) = tiny_model(config), replicated(config, 2)
    expected = TorchBackend(config, one).accumulate(random_batch(1, 4))

    def overflow(part: Batch) -> Losses | None:
        if not is_marked(part):
            return None
        losses = compute_losses(tiny_model(config), part, config)
        return Losses(losses.total, backend._replicas[1]._parameters[0].sum() * math.inf, losses.sop)

    fail_on(overflow)
    assert backend.accumulate(random_batch(1, 4)).loss == pytest.approx(expected.loss, rel=1e-6)
    assert not backend.accumulate(marked(random_batch(2, 4))).finite
    backend.collect()
    assert_same_gradients(model, one)


def test_a_replica_that_runs_out_of_memory_computes_its_part_again(fail_on: Any) -> None:
    """In smaller parts, to the same gradient; the other replica computes its own once."""
    config = exact_config()
    one, (backend, model) = tiny_model(config), replicated(config, 2)
    expected = TorchBackend(config, one).accumulate(marked(random_batch(2, 8)))
    computed: list[int] = []
    lock = threading.Lock()

    def little_room(part: Batch) -> Losses | None:
        with lock:
            computed.append(part.samples)
        if is_marked(part) and part.samples > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return None

    fail_on(little_room)
    result = backend.accumulate(marked(random_batch(2, 8)))
    backend.collect()
    assert result.loss == pytest.approx(expected.loss, rel=1e-6)
    assert sorted(computed) == [2, 2, 4, 4]
    assert_same_gradients(model, one)


def test_a_replica_without_room_for_one_sample_leaves_nothing_half_done(fail_on: Any) -> None:
    """The error comes when the others have ended, and none has added its part."""
    config = exact_config()
    backend, model = replicated(config, 2)

    def no_room(part: Batch) -> Losses | None:
        if is_marked(part):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return None

    fail_on(no_room)
    with pytest.raises(MemoryLimitError, match="Not even one sample"):
        backend.accumulate(marked(random_batch(2, 4)))
    backend.collect()
    assert not any(gradient.any() for gradient in gradients(model).values())


def test_a_model_that_does_not_fit_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which device has no room for the model itself is said when training begins."""

    def no_room(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("peer.backends.replicas.Passes", no_room)
    with pytest.raises(MemoryLimitError, match="does not even fit into the memory of cpu"):
        replicated(exact_config(), 2)


def test_replicas_compute_side_by_side() -> None:
    """Each replica's part is begun before any has ended."""
    config = exact_config()
    backend, _ = replicated(config, 3)
    meeting = threading.Barrier(3, timeout=PATIENCE_S)
    for replica in backend._replicas:
        compute = replica._passes.compute

        def meet(part: Batch, whole: Counts, compute: Any = compute) -> Any:
            meeting.wait()  # raises where one of them does not come
            return compute(part, whole)

        replica._passes.compute = meet  # type: ignore[method-assign]
    assert backend.accumulate(random_batch(1, 6)).finite


def test_microbatch_is_what_fits_for_each_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device with least room says how much; the limit is that of all together."""
    backend, _ = replicated(exact_config(), 2)
    assert backend.microbatch_size(4, 100, random_batch) == 8
    assert backend.microbatch_size(4, 6, random_batch) == 6
    assert backend.microbatch_size(4, 1, random_batch) == 2  # one for each device is the least
    room = iter([12, 7])
    monkeypatch.setattr(Passes, "fitting_size", lambda self, usual, limit, make_batch: min(limit, next(room)))
    assert backend.microbatch_size(4, 100, random_batch) == 14


def test_batches_and_gradients_go_through_pinned_memory() -> None:
    """Where there is a GPU, whatever goes to it or comes from it was pinned; without one, nothing is."""
    pinned: list[torch.Tensor] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor.clone())
        return pinned[-1]

    backend, model = replicated(exact_config(), 2, pin=pin)
    assert len(pinned) == len([parameter for parameter in model.parameters() if parameter.requires_grad])
    assert all(kept is buffer for kept, buffer in zip(pinned, backend._staging, strict=True))
    pinned.clear()
    batch = random_batch(1, 4)
    staged = backend.stage(batch)
    assert staged.input_ids is pinned[0]
    assert {id(value) for value in vars(staged).values() if value is not None} == {id(tensor) for tensor in pinned}
    assert torch.equal(staged.labels, batch.labels)
    without, _ = replicated(exact_config(), 2)
    assert without.stage(batch) is batch


def test_the_description_counts_the_devices() -> None:
    """And names the precision where it is not the usual one."""
    backend, _ = replicated(exact_config(), 2, precision="bf16")
    threads = torch.get_num_threads()
    assert backend.description == f"2 × cpu ({threads} thread{'s' if threads != 1 else ''}), bf16"


@pytest.mark.parametrize("architecture", ["gpt2", "roberta"])
def test_a_copy_of_every_family_trains_alike(architecture: str) -> None:
    """What is done to a new module beside its weights, as GPT-2's gradient hook, is done to a replica too."""
    config = family_config(architecture, **EXACT)
    alone, model = family_model(config), family_model(config)
    batch = family_batch(config, samples=4)
    TorchBackend(config, alone).accumulate(batch)
    backend = ReplicaBackend(config, model, [CPU, CPU])
    backend.accumulate(batch)
    backend.collect()
    assert_same_gradients(model, alone)
