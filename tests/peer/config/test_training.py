"""Phases: what is in force at a global step, and one clear sentence for every phase that does not fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from auth.errors import ConfigError
from peer.config.run import RunConfig

SHORT: dict[str, Any] = {
    "data": {"sequence_length": 128, "microbatch_size": 32},
    "averaging": {"target_batch_size": 2048},
    "schedule": {"warmup_steps": 100, "total_steps": 1000},
}
LONG = {"from_step": 600, "sequence_length": 512, "microbatch_size": 8, "target_batch_size": 1024}


def run(*phases: dict[str, Any]) -> RunConfig:
    """A run of 128 tokens with these phases."""
    return RunConfig.from_mapping(SHORT | {"phases": list(phases)})


def mistake(*phases: dict[str, Any]) -> str:
    """What the person reads who wrote these phases."""
    with pytest.raises(ConfigError) as caught:
        run(*phases)
    return str(caught.value)


@st.composite
def phases_in_order(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Valid phases, each with any of the changes."""
    changes = st.fixed_dictionaries(
        {},
        optional={
            "sequence_length": st.integers(16, 512),
            "microbatch_size": st.integers(1, 64),
            "target_batch_size": st.integers(64, 5000),
            "optimizer": st.sampled_from(["keep", "fresh"]),
            "learning_rate": st.floats(1e-5, 1.0),
            "warmup_steps": st.integers(0, 50),
        },
    )
    steps = draw(st.lists(st.integers(1, 900), unique=True, max_size=4).map(sorted))
    return [{"from_step": step} | draw(changes) for step in steps]


@given(st.integers(0, 2000))
def test_a_run_without_phases_is_the_same_at_every_step(step: int) -> None:
    """Without phases the configuration in force is the run file's."""
    config = RunConfig.from_mapping(SHORT)
    assert config.at_step(step) == config
    assert config.schedule_start(step) == 0


@given(phases_in_order(), st.integers(0, 1000))
def test_the_last_phase_that_named_a_key_is_in_force(phases: list[dict[str, Any]], step: int) -> None:
    """A key has the value of the last phase that has begun and names it, or the run file's; others never change."""
    config = run(*phases)
    now = config.at_step(step)
    begun = [phase for phase in phases if phase["from_step"] <= step]
    assert [phase.from_step for phase in now.phases] == [phase["from_step"] for phase in begun]

    def last(key: str, before: float) -> float:
        return next((phase[key] for phase in reversed(begun) if key in phase), before)

    assert now.data.sequence_length == last("sequence_length", 128)
    assert now.data.microbatch_size == last("microbatch_size", 32)
    assert now.averaging.target_batch_size == last("target_batch_size", 2048)
    assert now.optimizer.learning_rate == last("learning_rate", config.optimizer.learning_rate)
    assert now.schedule.warmup_steps == last("warmup_steps", 100)
    assert (now.model, now.data.sources, now.checkpoints) == (config.model, config.data.sources, config.checkpoints)


@given(phases_in_order(), st.integers(0, 1000))
def test_nothing_changes_until_the_phase_ends(phases: list[dict[str, Any]], step: int) -> None:
    """From a step to the end of its phase the same configuration is in force; at the end another phase has begun."""
    config = run(*phases)
    end = next((phase["from_step"] for phase in phases if phase["from_step"] > step), 1001)
    assert config.at_step(end - 1) == config.at_step(step)
    assert end == 1001 or len(config.at_step(end).phases) == len(config.at_step(step).phases) + 1


@given(phases_in_order())
def test_phases_survive_the_way_to_a_peer(phases: list[dict[str, Any]]) -> None:
    """What a peer reads from the coordinator's JSON has the same phases."""
    config = run(*phases)
    assert RunConfig.from_json(config.to_json()) == config


def test_a_phase_begins_when_its_step_is_completed() -> None:
    """Step 600 is the last of the first phase; what comes after 600 completed steps belongs to the second."""
    config = run(LONG)
    assert [config.at_step(step).data.sequence_length for step in (0, 599, 600)] == [128, 128, 512]


def test_a_schedule_starts_only_where_a_phase_names_one() -> None:
    """A phase without warm-up and end leaves the schedule where it is; either of them begins one."""
    config = run(
        {"from_step": 300}, {"from_step": 400, "warmup_steps": 5}, {"from_step": 500, "total_steps": 2000}, LONG
    )
    assert [config.schedule_start(step) for step in (0, 300, 399, 400, 499, 500, 700)] == [0, 0, 0, 400, 400, 500, 500]
    assert (config.at_step(450).schedule.warmup_steps, config.at_step(450).schedule.total_steps) == (5, 1000)
    assert (config.at_step(600).schedule.warmup_steps, config.at_step(600).schedule.total_steps) == (0, 2000)


def test_only_a_fresh_phase_starts_the_optimizer_and_only_at_its_step() -> None:
    """The optimizer holds no moments at the very step at which a fresh phase begins, and nowhere else."""
    config = run({"from_step": 300, "optimizer": "fresh"}, {"from_step": 400})
    assert [step for step in range(1000) if config.starts_optimizer(step)] == [300]


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        ([LONG, {"from_step": 600}], "`phases` must be in the order of their `from_step` (600, 600)"),
        ([LONG, {"from_step": 5}], "`phases` must be in the order of their `from_step` (600, 5)"),
        ([{"from_step": 0}], "`phases.0.from_step` (0): input should be greater than 0"),
        ([{"sequence_length": 64}], "`phases.0.from_step`"),
        ([LONG | {"optimizer": "forget"}], "`phases.0.optimizer` ('forget'): input should be 'keep' or 'fresh'"),
        ([LONG | {"sequence_length": 513}], "in phase 2 (from step 600), `data.sequence_length` (513) must not exceed"),
        ([LONG, {"from_step": 700, "sequence_length": 8}], "in phase 3 (from step 700), `data.sequence_length` (8)"),
        (
            [LONG, {"from_step": 700, "target_batch_size": 4}],
            "in phase 3 (from step 700), `data.microbatch_size` (8) must not exceed `averaging.target_batch_size` (4)",
        ),
        ([{"from_step": 1000}], "in phase 2 (from step 1000), `total_steps` (1000) must be above 1000"),
        ([LONG | {"warmup_steps": 400}], "in phase 2 (from step 600), `total_steps` (1000) must be above 1000"),
        ([LONG | {"learning_rate": -1.0}], "`phases.0.learning_rate` (-1.0): input should be greater than 0"),
    ],
)
def test_a_phase_that_does_not_fit_is_named(phases: list[dict[str, Any]], words: str) -> None:
    """A mistake names the phase, the key, the value and what is allowed."""
    assert words in mistake(*phases)
