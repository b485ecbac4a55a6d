"""Whole rehearsals of small swarms."""

from __future__ import annotations

import gc
from typing import Any, Literal

import pytest

from peer.config.run import RunConfig
from peer.network.traffic import ON_THE_LINE
from peer.rehearsal.board import LOOK_BYTES, PEER_BYTES
from peer.rehearsal.rounds import ROUND_BYTES
from peer.rehearsal.scenario import HomeLine, Mishap, Rehearsed, Scenario, Visit
from peer.rehearsal.states import STATE_BYTES
from peer.rehearsal.swarm import rehearse
from tests.support.tiny_albert import tiny_config

LINE = HomeLine(up_mbit_per_second=10, down_mbit_per_second=50)


def run_with(**averaging: Any) -> RunConfig:
    """A run with a batch of 64 samples, in microbatches of 2."""
    raw = tiny_config().model_dump(mode="json")
    raw["averaging"] |= {"target_batch_size": 64, "statistics_expiration_s": 60.0} | averaging
    raw["data"]["microbatch_size"] = 2
    return RunConfig.from_mapping(raw)


def swarm_of(*devices: Rehearsed, **others: Any) -> Scenario:
    """These devices for ten minutes, with a model of a million parameters."""
    return Scenario(duration_s=600.0, parameters=1_000_000, devices=devices, **others)


def volunteer(name: str, rate: float = 1.0, **others: Any) -> Rehearsed:
    """A volunteer on an ordinary home line."""
    return Rehearsed(name=name, line=LINE, samples_per_second=rate, **others)


def test_a_step_takes_as_long_as_its_batch_and_its_round() -> None:
    """Four devices with a sample a second fill a batch of 64 in 16 s; a round of 2 MB takes some seconds."""
    run = rehearse(run_with(), swarm_of(*map(volunteer, "abcd")), seed=0)
    assert run.step_s is not None
    assert 18 < run.step_s < 25
    assert [step.step for step in run.steps] == list(range(1, len(run.steps) + 1))
    assert run.steps[-1].peers == 5
    assert run.counted_share > 0.98
    assert run.utilisation == pytest.approx(16 / run.step_s, rel=0.1)
    assert run.suspected == {}


def test_each_direction_has_its_own_bytes() -> None:
    """Where the keeper reduces everything a volunteer sends its gradient, and receives averages and once the state."""
    devices = [volunteer(name, is_reachable=False) for name in "ab"]
    run = rehearse(run_with(compression="float16"), swarm_of(*devices), seed=0)
    values = ON_THE_LINE * 1_000_000
    for device in run.devices:
        assert 0.2e6 < device.sent_bytes / device.work.steps - 2 * values < 0.4e6  # beside the parts
        assert device.received_bytes - device.sent_bytes == pytest.approx(STATE_BYTES * values, rel=0.001)


def test_traffic_beside_the_parts_counts() -> None:
    """With a model of one value, only the DHT's looks and the words of the rounds pass the lines."""
    run = rehearse(run_with(), Scenario(duration_s=600.0, parameters=1, devices=tuple(map(volunteer, "ab"))), seed=0)
    for device in run.devices:
        looks = (device.sent_bytes - device.work.steps * ROUND_BYTES) / (LOOK_BYTES + 2 * PEER_BYTES)
        assert 30 < looks < 1200  # at most every half a second
        assert device.received_bytes == pytest.approx(device.sent_bytes, rel=0.01)


def test_samples_held_at_the_end_are_never_lost() -> None:
    """Not even when Python has closed the processes of the peers that were there."""
    scenario = Scenario(duration_s=580.0, parameters=1_000_000, devices=tuple(map(volunteer, "ab")))
    run = rehearse(run_with(), scenario, seed=0)
    gc.collect()
    assert all(each.work.lost.total() == 0 and each.work.computed > each.work.counted for each in run.devices)


def test_samples_of_a_peer_that_dies_are_lost_and_the_others_go_on() -> None:
    """They wait for it at most as long as its record lasts."""
    dying = volunteer("dying", visits=(Visit(end_s=301.0, ends="dies"),))
    run = rehearse(run_with(), swarm_of(*map(volunteer, "abc"), dying), seed=0)
    assert run.devices[3].work.lost["left"] > 0
    assert run.devices[3].work.present_s < 300
    assert max(later.at_s - sooner.at_s for sooner, later in zip(run.steps, run.steps[1:], strict=False)) < 120
    assert run.steps[-1].at_s > 560


def test_most_peers_go_on_without_the_keeper_and_it_comes_back() -> None:
    """Once its record is gone; after its return it is in the rounds again."""
    away = Mishap(kind="keeper", begin_s=100.0, end_s=400.0)
    run = rehearse(run_with(), swarm_of(*map(volunteer, "abcd"), mishaps=(away,)), seed=0)
    assert any(step.peers == 4 and 200 < step.at_s < 400 for step in run.steps)
    assert run.steps[-1].peers == 5
    assert run.suspected == {}


def test_delayed_steps_use_the_time_of_rounds() -> None:
    """Where a round takes as long as a batch, peers that train on beside it count far more samples."""
    slow = HomeLine(up_mbit_per_second=1, down_mbit_per_second=5)
    devices = [Rehearsed(name=name, line=slow, samples_per_second=1.0) for name in "abcd"]
    exact, delayed = (rehearse(run_with(delay=delay), swarm_of(*devices), seed=0) for delay in (False, True))
    assert delayed.utilisation > 1.4 * exact.utilisation


@pytest.mark.parametrize("ends", ["leaves", "dies"])
def test_a_peer_that_goes_while_it_averages_beside_training_holds_nobody_up(ends: Literal["leaves", "dies"]) -> None:
    """It takes its samples with it, and the others go on without it."""
    slow = HomeLine(up_mbit_per_second=1, down_mbit_per_second=5)
    devices = [Rehearsed(name=name, line=slow, samples_per_second=1.0) for name in "abc"]
    goes = Rehearsed(name="d", line=slow, samples_per_second=1.0, visits=(Visit(end_s=300.0, ends=ends),))
    run = rehearse(run_with(delay=True), swarm_of(*devices, goes), seed=0)
    assert run.devices[3].work.present_s < 300
    assert run.steps[-1].at_s > 550


def test_an_auxiliary_peer_takes_load_from_slow_lines() -> None:
    """Its fast line reduces what home lines would; so rounds are shorter where nobody else can reduce."""
    homes = [volunteer(name, is_reachable=False) for name in "abcdefgh"]
    keeper = HomeLine(up_mbit_per_second=20, down_mbit_per_second=20)
    helper = Rehearsed(name="helper", line=HomeLine(up_mbit_per_second=100, down_mbit_per_second=100))
    rounds = [
        rehearse(run_with(), scenario.model_copy(update={"duration_s": 200.0}), seed=0).steps[-1].round_s
        for scenario in (swarm_of(*devices, keeper=keeper, line_mbit=20) for devices in (homes, [*homes, helper]))
    ]
    assert rounds[1] < 0.6 * rounds[0]


def test_eyes_in_common_see_what_each_peer_sees() -> None:
    """A large swarm is judged once a moment for all; its steps are those of peers with eyes of their own."""
    scenario = swarm_of(*(volunteer(f"v{number}", 0.2 + 0.1 * number) for number in range(10)))
    own, common = (rehearse(run_with(), scenario, 0, shares_course=shared) for shared in (False, True))
    assert own.step_s is not None
    assert common.step_s == pytest.approx(own.step_s, rel=0.03)
    assert common.utilisation == pytest.approx(own.utilisation, rel=0.04)  # the last of thirty steps may be missing


def thin_lines(begin_s: float | None) -> Scenario:
    """Three homes, and one whose line needs minutes for its gradients, or does from this second on."""
    slow = HomeLine(up_mbit_per_second=0.1, down_mbit_per_second=10)
    if begin_s is None:
        return swarm_of(*map(volunteer, "abc"), Rehearsed(name="thin", line=slow, samples_per_second=1.0))
    drop = Mishap(kind="line", who="thin", begin_s=begin_s, end_s=10_000.0, factor=0.01)
    scenario = swarm_of(*map(volunteer, "abc"), volunteer("thin"), mishaps=(drop,))
    return scenario.model_copy(update={"duration_s": 1200.0})


@pytest.mark.parametrize("begin_s", [None, 200.0])
def test_a_line_too_slow_for_the_rounds_stops_nobody_else(begin_s: float | None) -> None:
    """Its peer stands by, from its start or once its line is measured again; the others take their steps."""
    scenario = thin_lines(begin_s)
    run = rehearse(run_with(), scenario, seed=0)
    thin = run.devices[3].work
    assert len([step for step in run.steps if step.at_s > scenario.duration_s / 2]) >= 10
    assert run.steps[-1].peers == 4
    assert run.counted_share > 0.9
    before = len([step for step in run.steps if step.at_s < (begin_s or 0.0)])
    assert before <= thin.steps <= before + (begin_s is not None)  # a round that has begun may still end
