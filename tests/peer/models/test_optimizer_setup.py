"""The optimizer that a run file names, its groups and its schedule."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from hivemind.compression import CompressionInfo

from peer.config.run import RunConfig
from peer.config.training import Schedule
from peer.models.optimizer_setup import (
    build_optimizer,
    build_scheduler,
    learning_rate_factor,
    parameter_groups,
    rate_in_phase,
    state_size,
)
from peer.node.states import STATE_CODE
from peer.swarm.training_state import moment_roles
from tests.support.tiny_albert import random_batch, tiny_config, tiny_model, transformers_outputs
from tests.support.tiny_families import NAMES, family_config, family_model

RULES = ("lamb", "adamw", "stable_adamw", "muon")


def with_optimizer(config: RunConfig, name: str, local_steps: int = 1, **options: Any) -> RunConfig:
    """The same run with another optimizer."""
    changes = {"optimizer": {"name": name, **options}, "averaging": {"local_steps": local_steps}}
    return RunConfig.from_mapping({**config.model_dump(), **changes})


def test_frozen_parameters_are_left_out() -> None:
    """What the objective does not train is not in the optimizer, where weight decay would wear it away."""
    config = RunConfig.from_mapping({**tiny_config().model_dump(), "objective": {"name": "mlm"}})
    model = tiny_model(config)
    grouped = {id(parameter) for group in parameter_groups(model, config) for parameter in group["params"]}
    assert grouped == {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    assert id(model.albert.pooler.weight) not in grouped


def test_recipe_comes_from_the_run_file() -> None:
    """Every option of the run's optimizer section arrives in the optimizer."""
    options = {
        "learning_rate": 0.5,
        "betas": [0.8, 0.99],
        "epsilon": 1e-5,
        "weight_decay": 0.2,
        "clamp_value": 7.0,
        "max_grad_norm": 2.0,
    }
    config = RunConfig.from_mapping({**tiny_config().model_dump(), "optimizer": options})
    optimizer = build_optimizer(config, parameter_groups(tiny_model(config), config))
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (0.5, (0.8, 0.99), 1e-5, 0.2)
    assert (optimizer.clamp_value, optimizer.max_grad_norm) == (7.0, 2.0)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_decayed_in_every_family(name: str) -> None:
    """Matrices and tables are decayed, vectors (biases, layer norms) are not, and frozen parameters are in no group."""
    config = family_config(name)
    model = family_model(config)
    groups = parameter_groups(model, config)
    assert [group["weight_decay"] for group in groups] == [config.optimizer.weight_decay, 0.0]
    decayed, others = (group["params"] for group in groups)
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    assert not [names[id(p)] for p in decayed if "bias" in names[id(p)] or "norm" in names[id(p)].lower()]
    assert all("bias" in names[id(p)] or "norm" in names[id(p)].lower() or "ln_" in names[id(p)] for p in others)
    assert sorted(map(id, (*decayed, *others))) == sorted(id(p) for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("name", NAMES)
def test_muons_own_rule_is_for_hidden_matrices_of_every_family(name: str) -> None:
    """Matrices of the layers are in its group; embeddings, heads, vectors and other tensors are AdamW's."""
    config = with_optimizer(family_config(name), "muon")
    model = family_model(config)
    hidden, others, vectors = parameter_groups(model, config)
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    inner = [names[id(p)] for p in hidden["params"]]
    outer = [names[id(p)] for p in others["params"]]
    assert hidden["is_hidden"]
    assert "is_hidden" not in others
    assert inner
    assert all("layer" in key or ".h." in key for key in inner)
    assert not [key for key in inner if "embed" in key or "head" in key.split(".")[0]]
    assert any("embed" in key or "wte" in key for key in outer)
    grouped = [id(p) for group in (hidden, others, vectors) for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("local_steps", [1, 2])
@pytest.mark.parametrize("optimizer", RULES)
def test_the_doctor_counts_the_state_that_there_is(optimizer: str, local_steps: int) -> None:
    """The counts are those of the real tensors, and the bytes those of the real code on the wire."""
    config = with_optimizer(family_config("bert"), optimizer, local_steps)
    model = family_model(config)
    made = build_optimizer(config, parameter_groups(model, config))
    tensors = [value for state in made.state.values() for value in state.values()]
    size = state_size(config, model)
    assert size.moments == sum(tensor.numel() for tensor in tensors)
    assert size.parameters == sum(p.numel() for p in model.parameters() if p.requires_grad)
    state = sorted(made.state_dict()["state"].items())
    moments = [each[name] for _, each in state for name in sorted(each)]
    wire = sum(
        len(STATE_CODE.compress(tensor, CompressionInfo.from_tensor(tensor, role=role)).buffer)
        for role, tensor in zip(moment_roles(made), moments, strict=True)
    )
    assert size.wire_bytes == pytest.approx(4 * size.parameters + wire, rel=0.01)  # a last block may not be full


@pytest.mark.parametrize("optimizer", RULES)
def test_a_run_file_names_the_rule(optimizer: str) -> None:
    """The class and its hyperparameters are those of the run file, and a few steps on a batch lower its loss."""
    config = with_optimizer(tiny_config(), optimizer, learning_rate=2e-3, momentum=0.9)
    model = tiny_model(config)
    made = build_optimizer(config, parameter_groups(model, config))
    assert type(made).__name__.lower() == optimizer.replace("_", "")
    assert (made.max_grad_norm, made.param_groups[0]["lr"]) == (config.optimizer.max_grad_norm, 2e-3)
    assert getattr(made, "momentum", 0.9) == 0.9
    losses = []
    for _ in range(8):
        made.zero_grad()
        loss = transformers_outputs(model, random_batch(0)).loss
        loss.backward()
        made.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("step", "factor"), [(0, 0.25), (1, 0.5), (3, 1.0), (4, 1.0), (5, 0.9), (13, 0.1), (14, 0.0), (100, 0.0)]
)
def test_warms_up_then_decays_to_zero(step: int, factor: float) -> None:
    """Four warm-up steps, none of them wasted on a rate of zero, then a line down to zero at the last step."""
    assert learning_rate_factor(step, Schedule(warmup_steps=4, total_steps=14)) == pytest.approx(factor)


@pytest.mark.parametrize("step", [*range(0, 120, 7), 19, 20, 59, 60, 99, 100, 500])
@pytest.mark.parametrize("start", [0, 10])
def test_other_shapes_follow_their_formulas(step: int, start: int) -> None:
    """Half a cosine, and a constant rate with a decay of 1 - sqrt; neither rises again behind the last step."""
    cosine = Schedule(shape="cosine", warmup_steps=10, total_steps=100)
    stable = Schedule(shape="warmup_stable_decay", warmup_steps=10, total_steps=100, decay_steps=40)
    if step < start + 10:
        expected = [(step - start + 1) / 10] * 2
    else:
        progress = min(1.0, (step - start - 10) / (100 - start - 10))
        decayed = min(1.0, max(0.0, (step - 60) / 40))
        expected = [(1 + math.cos(math.pi * progress)) / 2, 1 - math.sqrt(decayed)]
    found = [learning_rate_factor(step, schedule, start) for schedule in (cosine, stable)]
    assert found == pytest.approx(expected, abs=1e-12)


def test_a_phase_brings_another_shape() -> None:
    """A constant rate goes on in a phase that begins a decay at once, as runs of an unknown length end."""
    schedule = {"shape": "warmup_stable_decay", "warmup_steps": 2, "total_steps": 1000, "decay_steps": 10}
    phase = {"from_step": 50, "total_steps": 60, "schedule": "linear"}
    config = RunConfig.from_mapping({"optimizer": {"learning_rate": 1.0}, "schedule": schedule, "phases": [phase]})
    assert [rate_in_phase(step, config) for step in (1, 2, 49, 50, 55, 60)] == pytest.approx([1, 1, 1, 1, 0.5, 0])


@pytest.mark.parametrize("shape", ["linear", "cosine", "warmup_stable_decay"])
def test_a_rate_is_a_function_of_the_step_alone(shape: str) -> None:
    """A scheduler that was set to a step, forwards or backwards, has the rate of one that came there step by step."""
    schedule = {"shape": shape, "warmup_steps": 3, "total_steps": 20}
    schedule |= {"decay_steps": 8} if shape == "warmup_stable_decay" else {}
    config = RunConfig.from_mapping({**tiny_config().model_dump(), "schedule": schedule})
    rates = [config.optimizer.learning_rate * rate_in_phase(step, config) for step in range(25)]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=config.optimizer.learning_rate)
    scheduler = build_scheduler(config, optimizer)
    for step in (17, 2, 24, 0, 9):
        scheduler._step_count, scheduler.last_epoch = step, step - 1  # as `TrainingState.set_step` does
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scheduler.step()
        assert scheduler.get_last_lr() == pytest.approx([rates[step]])


def test_no_warmup_starts_at_the_peak() -> None:
    """Without warm-up the first step has the full rate."""
    assert learning_rate_factor(0, Schedule(warmup_steps=0, total_steps=10)) == 1.0


@pytest.mark.parametrize(
    ("step", "rate"), [(0, 0.25), (3, 1.0), (9, 0.5), (10, 0.1), (11, 0.2), (12, 0.2), (16, 0.1), (20, 0.0), (30, 0.0)]
)
def test_a_phase_warms_up_to_its_own_peak(step: int, rate: float) -> None:
    """A phase with a fifth of the peak and two warm-up steps starts low at its step, then decays from its peak."""
    phase = {"from_step": 10, "learning_rate": 0.2, "warmup_steps": 2, "total_steps": 20}
    schedule = {"warmup_steps": 4, "total_steps": 14}
    config = RunConfig.from_mapping({"optimizer": {"learning_rate": 1.0}, "schedule": schedule, "phases": [phase]})
    assert rate_in_phase(step, config) == pytest.approx(rate)


def test_a_phase_without_a_schedule_goes_on_in_the_old_one() -> None:
    """A phase that only names a peak scales the schedule that is under way."""
    schedule = {"warmup_steps": 0, "total_steps": 10}
    phases = [{"from_step": 4, "sequence_length": 256}, {"from_step": 6, "learning_rate": 0.5}]
    config = RunConfig.from_mapping({"optimizer": {"learning_rate": 1.0}, "schedule": schedule, "phases": phases})
    assert [rate_in_phase(step, config) for step in (3, 4, 5, 6, 8)] == pytest.approx([0.7, 0.6, 0.5, 0.2, 0.1])


def test_scheduler_sets_the_rate_of_each_global_step() -> None:
    """Stepped along with the optimizer, the scheduler gives each step its share of the peak rate."""
    config = RunConfig.from_mapping({**tiny_config().model_dump(), "schedule": {"warmup_steps": 2, "total_steps": 6}})
    optimizer = build_optimizer(config, parameter_groups(tiny_model(config), config))
    scheduler = build_scheduler(config, optimizer)
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            rates.append(optimizer.param_groups[1]["lr"] / config.optimizer.learning_rate)
            optimizer.step()
            scheduler.step()
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.75])
