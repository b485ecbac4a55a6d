"""What people are told of a run's phases."""

from __future__ import annotations

from peer.config.phases import all_phases, phase_at
from peer.config.run import RunConfig

CONFIG = RunConfig.from_mapping(
    {
        "data": {"sequence_length": 64, "microbatch_size": 8},
        "averaging": {"target_batch_size": 512},
        "phases": [
            {"from_step": 10, "sequence_length": 128, "optimizer": "fresh", "warmup_steps": 2},
            {"from_step": 20, "target_batch_size": 256},
        ],
    }
)


def test_a_run_without_phases_has_one() -> None:
    """What holds from the first step on is phase 1 of 1."""
    (only,) = all_phases(RunConfig())
    assert (only.number, only.count, only.from_step, only.fresh_optimizer) == (1, 1, 0, False)
    assert str(only) == "512 tokens, 4096 samples a step"


def test_each_phase_says_what_it_consists_in() -> None:
    """Length, batch and a fresh optimizer are named; the latter is no property of the phase that comes after."""
    assert [str(phase) for phase in all_phases(CONFIG)] == [
        "64 tokens, 512 samples a step",
        "128 tokens, 512 samples a step, fresh optimizer",
        "128 tokens, 256 samples a step",
    ]


def test_a_step_is_in_the_phase_that_began_last() -> None:
    """After as many completed steps as a phase begins at, it is the one in force."""
    assert [phase_at(CONFIG, step).number for step in (0, 9, 10, 19, 20, 99)] == [1, 1, 2, 2, 3, 3]
    assert [phase.from_step for phase in all_phases(CONFIG)] == [0, 10, 20]
