"""The benchmarks of homes: what hivemind's peers do and say, when a batch was full, and who took the step."""

from __future__ import annotations

from contextlib import nullcontext
from inspect import signature
from types import SimpleNamespace
from typing import Any

import hivemind
import pytest
import torch
from hivemind.compression import Float16Compression

from benchmarks.swarm.hivemind_peer import WatchedOptimizer, open_optimizer
from benchmarks.swarm.home_lines import MATCHMAKING_S, configure
from benchmarks.swarm.homes import HIVEMIND, Plan
from benchmarks.swarm.scale import Step, full_batch_at, steps_between

TARGET = 4
Said = dict[str, Any]


class Journal:
    """Keeps what a peer says."""

    def __init__(self) -> None:
        self.said: list[Said] = []

    def say(self, event: str, **facts: Any) -> None:
        self.said.append({"event": event, **facts})


@pytest.mark.parametrize(("system", "is_delayed"), [("hivemind-exact", False), ("hivemind-example", True)])
def test_the_options_of_the_example_reach_hivemind(
    system: str, is_delayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of examples/albert in hivemind 1.1.12; the exact form lacks nothing but the delay."""
    begin, taken = signature(hivemind.Optimizer.__init__), dict[str, Any]()

    def note(self: hivemind.Optimizer, **options: Any) -> None:
        taken.update(begin.bind(self, **options).arguments)
        self._parent_pid = 0  # it has begun nothing that hivemind would end

    monkeypatch.setattr(hivemind.Optimizer, "__init__", note)
    config = configure("homes", MATCHMAKING_S, quick=True)
    plan, journal, nowhere = Plan("trainer", config.to_json(), "", "", system=system), Journal(), object()
    open_optimizer(plan, config, torch.nn.Linear(4, 2), nowhere, journal)  # type: ignore[arg-type]
    assert (taken["delay_grad_averaging"], taken["delay_optimizer_step"]) == (is_delayed, is_delayed)
    assert taken["offload_optimizer"]
    assert (taken["matchmaking_time"], taken["averaging_timeout"]) == (5.0, 60.0)
    for key in "grad_compression", "state_averaging_compression":
        assert isinstance(taken[key], Float16Compression)
    assert taken["averager_opts"]["target_group_size"] == 256
    assert {key: taken["tracker_opts"][key] for key in ("max_refresh_period", "metadata_expiration")} == {
        "max_refresh_period": 30,
        "metadata_expiration": 120,
    }


def test_hivemind_has_two_systems() -> None:
    """Every benchmark takes both from one place."""
    assert list(HIVEMIND) == ["hivemind-exact", "hivemind-example"]


class Round:
    """A round of hivemind's, which is over when it is told so."""

    is_over = False

    def done(self) -> bool:
        return self.is_over

    cancelled = exception = lambda _self: None

    def result(self) -> list[str]:
        return ["this peer", "another"]


def test_samples_of_a_delayed_round_are_told_when_its_average_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were computed before it began, although the peer has computed others meanwhile."""
    monkeypatch.setattr(hivemind.Optimizer, "_begin_averaging_gradients", lambda _self, _scaler: True)
    monkeypatch.setattr(hivemind.Optimizer, "_average_gradients_and_load_into_optimizer", lambda _self, _control: None)
    monkeypatch.setattr(hivemind.Optimizer, "local_epoch", 6)
    journal = Journal()
    optimizer: Any = WatchedOptimizer.__new__(WatchedOptimizer)
    optimizer._parent_pid = 0
    optimizer._journal, optimizer._due, optimizer.scheduled_grads = journal, {}, Round()
    averages = nullcontext([torch.ones(2)])
    optimizer.grad_averager = SimpleNamespace(local_samples_accumulated=8, get_tensors=lambda: averages)
    optimizer._begin_averaging_gradients(None)
    optimizer.grad_averager.local_samples_accumulated = 3
    assert journal.said == []
    optimizer.scheduled_grads.is_over = True
    optimizer._average_gradients_and_load_into_optimizer(optimizer.scheduled_grads)
    (told,) = journal.said
    assert (told["event"], told["step"], told["samples"], told["group"]) == ("step", 7, 8, 2)


def computed(at: float, samples: int) -> Said:
    """A peer has computed so many samples in all."""
    return {"event": "computed", "at": at, "computed": samples}


def step(at: float, number: int, samples: int, in_all: int, group: int = 3) -> Said:
    """It has taken a step, with so many of its samples."""
    return {"event": "step", "at": at, "step": number, "samples": samples, "group": group, "computed": in_all}


def lost(at: float, samples: int, in_all: int) -> Said:
    """So many of them are lost."""
    return {"event": "lost", "at": at, "by_cause": {"late": samples}, "computed": in_all}


def test_a_batch_is_full_with_what_was_computed_since_the_step_before() -> None:
    """Samples that were left over count when their peer has taken the step before."""
    one = [computed(1.0, 3), step(2.0, 1, 2, 3), computed(4.0, 4), step(9.0, 2, 2, 4)]
    other = [computed(1.0, 2), step(3.0, 1, 2, 2), computed(5.0, 3), computed(6.0, 4), step(8.0, 2, 2, 4)]
    assert full_batch_at([one, other], 1, TARGET) == 6.0
    assert list(steps_between([one, other], TARGET, 7.0, 8.5)) == [Step(3, 2, 3.0)]
    assert list(steps_between([one, other], TARGET, 0.0, 7.0)) == []


def test_lost_samples_fill_no_batch() -> None:
    """Nor does what a peer computes that has not taken the step before."""
    one = [step(2.0, 1, 0, 2), lost(2.0, 2, 2), computed(3.0, 5), lost(4.0, 3, 5), computed(5.0, 6), computed(6.0, 9)]
    behind = [computed(3.0, 9)]
    assert full_batch_at([one, behind], 1, TARGET) == 6.0
    assert full_batch_at([one, behind], 1, TARGET + 1) is None
    assert full_batch_at([behind], 1, TARGET) is None


@pytest.mark.parametrize("groups", [(3, 2), (2, 3)])
def test_of_several_groups_the_largest_is_told(groups: tuple[int, int]) -> None:
    """In plain hivemind one step may have several."""
    peers = [[step(1.0, 1, 0, 0), computed(2.0, 2), step(3.0, 2, 2, 2, group)] for group in groups]
    assert list(steps_between(peers, TARGET, 0.0, 9.0)) == [Step(3, 2, 1.0)]
