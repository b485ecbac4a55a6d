"""Gradients that are set aside for a round in the background; real rounds are in tests/system."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import hivemind
import pytest
import torch

from auth.swarm_auth import SwarmAccess
from peer.averaging import SwarmGradientAverager
from peer.findings import Finding, FindingKind
from peer.gathering import Gathering
from peer.guest.traffic import Traffic

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")  # by hivemind, for its daemon


@pytest.fixture(scope="module")
def dht() -> Iterator[hivemind.DHT]:
    """A swarm's node of its own."""
    node = hivemind.DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"], use_ipfs=False)
    yield node
    node.shutdown()


@pytest.fixture
def parameter() -> torch.nn.Parameter:
    """What is trained."""
    return torch.nn.Parameter(torch.zeros(3))


@pytest.fixture
def averager(dht: hivemind.DHT, parameter: torch.nn.Parameter) -> SwarmGradientAverager:
    """An averager that is never started, so that no round begins."""
    access = cast(SwarmAccess, None)  # nobody asks to take part
    return SwarmGradientAverager(
        [parameter],
        dht=dht,
        prefix="test",
        access=access,
        traffic=Traffic(),
        gathering=Gathering(5.0),
        allreduce_timeout=60.0,
        start=False,
    )


def accumulate(averager: SwarmGradientAverager, parameter: torch.nn.Parameter, value: float, samples: int) -> None:
    """Add a microbatch whose gradient is `value` in each sample."""
    assert parameter.grad is not None
    parameter.grad.add_(value * samples)
    averager.accumulate_grads_(samples)


def averaged(averager: SwarmGradientAverager) -> list[float]:
    """What would be sent to the others."""
    averager.load_accumulators_into_averager_()
    with averager.get_tensors() as tensors:
        return [float(value) for value in tensors[0]]


def test_what_is_held_is_averaged_and_what_comes_after_is_not(
    averager: SwarmGradientAverager, parameter: torch.nn.Parameter
) -> None:
    """The mean over the samples that were there when the round began, however many come beside it."""
    accumulate(averager, parameter, 2.0, samples=4)
    averager.hold()
    accumulate(averager, parameter, 100.0, samples=8)
    assert averager.due_samples == 4
    assert averaged(averager) == [2.0] * 3


def test_a_failed_round_gives_back_what_it_had(averager: SwarmGradientAverager, parameter: torch.nn.Parameter) -> None:
    """Then all samples count towards the same step: none is lost, none is counted twice."""
    accumulate(averager, parameter, 2.0, samples=4)
    averager.hold()
    accumulate(averager, parameter, 5.0, samples=8)
    averager.take_back()
    assert not averager.holds
    assert averager.due_samples == 12
    assert averaged(averager) == [4.0] * 3


def test_a_step_lends_the_gradients_place(averager: SwarmGradientAverager, parameter: torch.nn.Parameter) -> None:
    """The optimizer finds the average in `.grad`; afterwards what came beside the round is there, for the next step."""
    accumulate(averager, parameter, 2.0, samples=4)
    averager.hold()
    accumulate(averager, parameter, 5.0, samples=8)
    with averager.making_room():
        assert parameter.grad is not None
        parameter.grad.fill_(-1.0)
    assert averager.due_samples == 8
    assert averaged(averager) == [5.0] * 3


def test_a_step_that_was_waited_for_uses_all_up(averager: SwarmGradientAverager, parameter: torch.nn.Parameter) -> None:
    """Without a round in the background the next step begins from nothing."""
    accumulate(averager, parameter, 2.0, samples=4)
    with averager.making_room():
        assert parameter.grad is not None
        parameter.grad.fill_(-1.0)
    assert averager.due_samples == 0
    assert parameter.grad is not None
    assert torch.equal(parameter.grad, torch.zeros(3))


def test_all_that_is_dropped_is_counted(averager: SwarmGradientAverager, parameter: torch.nn.Parameter) -> None:
    """A peer that was out of sync loses what it held and what came beside it, and says how much that was."""
    accumulate(averager, parameter, 2.0, samples=4)
    averager.hold()
    accumulate(averager, parameter, 5.0, samples=8)
    assert averager.drop_all() == 12
    assert (averager.holds, averager.due_samples) == (False, 0)
    assert averaged(averager) == [0.0] * 3


@pytest.mark.parametrize(("kind", "accused"), [("average", ["Qm1"]), ("samples", ["Qm1"]), ("reduction", [])])
def test_only_what_this_peer_saw_itself_is_an_accusation(
    averager: SwarmGradientAverager, kind: FindingKind, accused: list[str]
) -> None:
    """What others showed it after the round takes no reducer its part; it goes to the operator all the same."""
    finding = Finding("Qm1", kind, "returned something")
    averager._note(finding)
    assert averager.findings.take() == [finding]
    assert averager._accusations.current() == accused
