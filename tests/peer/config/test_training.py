"""Phases: what is in force at a global step, and one clear sentence for every phase that does not fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from auth.errors import ConfigError
from peer.config.phases import phase_at
from peer.config.run import RunConfig
from peer.config.trust import local_paths

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


GROWING = {"target_batch_size": 1000, "initial_batch_size": 100, "batch_warmup_steps": 9}


def test_the_batch_grows_on_a_line() -> None:
    """From the first step's batch to the target, as a function of the step; then it stays, and is part of a phase."""
    content = SHORT | {"averaging": GROWING, "phases": [{"from_step": 6, "target_batch_size": 1900}]}
    config = RunConfig.from_mapping(content)
    targets = [config.at_step(step).averaging.target_batch_size for step in range(12)]
    assert targets == [100, 200, 300, 400, 500, 600, 1300, 1500, 1700, 1900, 1900, 1900]
    assert config.in_phase(2).averaging.target_batch_size == 1000
    assert config.at_step(3).at_step(8) == config.at_step(3)  # a configuration in force grows no more
    assert RunConfig.from_json(config.to_json()) == config
    assert str(phase_at(config, 0)) == "128 tokens, 100 samples a step, growing to 1000"
    assert str(phase_at(config, 9)) == "128 tokens, 1900 samples a step"


def test_a_phase_brings_mask_rate_and_sources() -> None:
    """They hold from the phase on; all that a run reads in any phase is known from the beginning."""
    books = {"kind": "text", "path": "/books.txt", "weight": 2.0}
    config = run({"from_step": 300, "mask_probability": 0.05}, {"from_step": 400, "sources": [books]})
    assert [config.at_step(step).objective.mask_probability for step in (0, 299, 300, 500)] == [0.15, 0.15, 0.05, 0.05]
    assert [config.at_step(step).data.sources[0].kind for step in (0, 399, 400)] == ["builtin", "builtin", "text"]
    assert [source.kind for source in config.all_sources] == ["builtin", "text"]
    assert list(local_paths(config)) == ["/books.txt"]


def test_a_shape_brings_its_own_decay() -> None:
    """A phase with another shape begins a schedule, and takes no decay over that is not its own."""
    stable = {"shape": "warmup_stable_decay", "warmup_steps": 100, "total_steps": 1000, "decay_steps": 50}
    phases = [{"from_step": 300, "schedule": "cosine"}, {"from_step": 400}]
    config = RunConfig.from_mapping(SHORT | {"schedule": stable, "phases": phases})
    now = config.at_step(450).schedule
    assert (now.shape, now.decay_steps, config.schedule_start(450)) == ("cosine", None, 300)


STABLE = {"shape": "warmup_stable_decay", "warmup_steps": 6, "total_steps": 10}
MASKED = {"model": {"architecture": "bert"}, "objective": {"name": "mlm"}}
CAUSAL = {"model": {"architecture": "gpt2"}, "objective": {"name": "clm"}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"averaging": {"initial_batch_size": 64}}, "`initial_batch_size` and `batch_warmup_steps` go together"),
        ({"averaging": GROWING | {"target_batch_size": 99}}, "`initial_batch_size` (100) must not exceed"),
        (
            {"averaging": GROWING | {"initial_batch_size": 8}},
            "`data.microbatch_size` (32) must not exceed `averaging.initial_batch_size` (8)",
        ),
        (
            {"averaging": GROWING | {"local_steps": 2}},
            "`averaging.initial_batch_size` (100) is for averaged gradients: leave it out, or `averaging.local_steps`",
        ),
        (
            {"averaging": GROWING, "phases": [{"from_step": 1, "target_batch_size": 50}]},
            "in phase 2 (from step 1), `target_batch_size` (50) must not be below `averaging.initial_batch_size` (100)",
        ),
        ({"schedule": {"shape": "cosine", "decay_steps": 5}}, "the shape `cosine` takes no `decay_steps`"),
        ({"schedule": {"shape": "warmup_stable_decay"}}, "the shape `warmup_stable_decay` needs `decay_steps`"),
        (
            {"schedule": STABLE | {"decay_steps": 5}},
            "`warmup_steps` (6) and `decay_steps` (5) must not exceed `total_steps` (10) together",
        ),
        (
            {"phases": [{"from_step": 990, "schedule": "warmup_stable_decay", "decay_steps": 50}]},
            "in phase 2 (from step 990), `decay_steps` (50) must not exceed 10, the steps after the warm-up",
        ),
        (
            CAUSAL | {"phases": [{"from_step": 5, "mask_probability": 0.1}]},
            "in phase 2 (from step 5), `mask_probability` is for masked language modelling, not for `clm`",
        ),
        ({"optimizer": {"name": "sgd"}}, "`optimizer.name` (sgd) is for local steps"),
        ({"averaging": {"target_batch_size": 128, "local_steps": 8}}, "`averaging.local_steps` (8)"),
        ({"averaging": {"local_steps": 0}}, "`averaging.local_steps` (0)"),
        ({"averaging": {"outer_momentum": 1.0}}, "`averaging.outer_momentum` (1.0)"),
        ({"averaging": {"compression": "9bit"}}, "`averaging.compression` ('9bit')"),
        ({"averaging": {"powersgd_rank": -1}}, "`averaging.powersgd_rank` (-1)"),
        ({"averaging": {"powersgd_rank": 2.5}}, "`averaging.powersgd_rank` (2.5)"),
        (
            {
                "model": {"architecture": "bert"},
                "objective": {"name": "mlm"},
                "data": {"cross_document_attention": False},
            },
            "`data.cross_document_attention` (false) is not for `bert`",
        ),
        (
            {"averaging": {"compression": "auto", "powersgd_rank": 8}},
            "`compression` (auto) chooses the rank, too: set `powersgd_rank` (8) to 0, or name a compression",
        ),
    ],
)
def test_a_section_that_does_not_fit_is_one_sentence(content: dict[str, Any], words: str) -> None:
    """Batches that grow, shapes and optimizers are checked when the run file is read."""
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_mapping(SHORT | content)
    assert words in str(caught.value)


def test_a_run_that_chooses_begins_with_eight_bits() -> None:
    """Clipping goes with it; a run that names a compression begins with that."""
    chosen = RunConfig.from_mapping(SHORT | {"averaging": {"compression": "auto", "aggregation": "centered_clipping"}})
    assert chosen.averaging.wire_format == "8bit-blockwise"
    assert RunConfig.from_json(chosen.to_json()) == chosen
    assert RunConfig.from_mapping(SHORT).averaging.wire_format == "float16"


@pytest.mark.parametrize("averaging", [{"local_steps": 2}, {"powersgd_rank": 4}, {"delay": True}, {}])
@pytest.mark.parametrize("optimizer", ["lamb", "adamw", "stable_adamw", "muon"])
def test_every_optimizer_goes_with_every_way_to_average(optimizer: str, averaging: dict[str, Any]) -> None:
    """Neither local steps nor factors nor delayed steps ask for an optimizer of their own."""
    content = SHORT | {"optimizer": {"name": optimizer}, "averaging": {"target_batch_size": 2048} | averaging}
    assert RunConfig.from_mapping(content).optimizer.name == optimizer


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
