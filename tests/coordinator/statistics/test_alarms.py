"""What is an alarm about the model, and what is not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from coordinator.statistics.alarms import HELD_STEPS, LEAST_PATIENCE, Vitals, alarms_of


def kinds(vitals: Vitals, warmup_steps: int = 0) -> list[tuple[str, int]]:
    """Which alarms hold, and since which step."""
    return [(alarm.kind, alarm.step) for alarm in alarms_of(vitals, warmup_steps=warmup_steps)]


def losses(*values: float | None) -> Sequence[tuple[int, float | None]]:
    """Of steps from 1 on."""
    return list(enumerate(values, start=1))


FALLING = [9.0 - 0.05 * step for step in range(100)]


def test_an_ordinary_run_is_quiet() -> None:
    """From its first step on, with noise, and with a single step whose loss nobody could tell."""
    for length in (0, 1, 4, 5, 100):
        assert kinds(Vitals(losses(*FALLING[:length]))) == []
    noisy = [loss + (0.5 if step % 3 else -0.5) for step, loss in enumerate(FALLING)]
    assert kinds(Vitals(losses(*noisy[:50], None, *noisy[50:]))) == []


def test_a_loss_that_is_not_finite_is_named_with_its_first_step() -> None:
    """Of the newest steps in a row; what came to an end is over."""
    assert kinds(Vitals(losses(*FALLING[:20], None, math.nan, None))) == [("loss_not_finite", 21)]
    assert kinds(Vitals(losses(*FALLING[:20], None, *FALLING[20:30]))) == []


def test_divergence_is_measured_against_the_best_of_late() -> None:
    """One bad step is none; the alarm names the first of the high losses, and ends with them."""
    assert kinds(Vitals(losses(*FALLING, 9.0))) == []
    high = losses(*FALLING, *[9.0] * 6)
    assert kinds(Vitals(high)) == [("loss_diverges", 101)]
    (alarm,) = alarms_of(Vitals(high), warmup_steps=0)
    assert alarm.detail == "the loss is 9, and was 4.15 at step 98"
    assert kinds(Vitals([*high, *((step, 4.0) for step in range(107, 112))])) == []


@pytest.mark.parametrize("leap", [11.0, math.nan, 1e300])
def test_a_step_that_moves_too_far_is_named(leap: float) -> None:
    """Warm-up, which moves farther from step to step, is none; the alarm holds for some steps."""
    usual = [(step, 0.02 * step) for step in range(1, 50)]
    assert kinds(Vitals((), usual)) == []
    after = [*usual, (50, leap)]
    assert kinds(Vitals((), after)) == [("update_norm", 50)]
    for step in range(51, 50 + HELD_STEPS):
        after.append((step, 1.0))
        assert kinds(Vitals((), after)) == [("update_norm", 50)]
    assert kinds(Vitals((), [*after, (99, 1.0)])) == []


def test_a_further_leap_is_told_beside_the_first() -> None:
    """The alarm keeps the step with which it began, and says what the newest leap was; other alarms do not hide it."""
    usual = [(step, 1.0 + 0.01 * (step % 7)) for step in range(1, 50)]
    updates = [*usual, (50, 39.0), (51, 1.0), (52, 44.0)]
    (alarm,) = alarms_of(Vitals((), updates), warmup_steps=0)
    assert (alarm.kind, alarm.step) == ("update_norm", 50)
    assert "step 52 moved the parameters by 44, the median is 1.03" in alarm.detail
    both = Vitals(losses(*FALLING, None, None), updates)
    assert [kind for kind, _ in kinds(both)] == ["loss_not_finite", "update_norm"]


def test_a_model_must_in_time_beat_a_unigram() -> None:
    """Not before its warm-up is over, counted from where its phase began; better is better, if only a little."""
    late = LEAST_PATIENCE + 50
    assert kinds(Vitals((), held_out=(late, 7.0), unigram=7.0)) == [("no_better_than_unigram", late)]
    assert kinds(Vitals((), held_out=(late, 6.99), unigram=7.0)) == []
    assert kinds(Vitals((), held_out=(LEAST_PATIENCE - 1, 9.0), unigram=7.0)) == []
    assert kinds(Vitals((), held_out=(late, 9.0), unigram=7.0), warmup_steps=1000) == []
    assert kinds(Vitals((), began=100, held_out=(late, 9.0), unigram=7.0)) == []
    assert kinds(Vitals((), held_out=(late, 9.0))) == []
