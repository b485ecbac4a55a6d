"""What operators say of a live run, and what it comes to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from auth.errors import ConfigError, UnconfirmedError
from coordinator.ledger.sessions import checked_claim, open_session, touch_sessions
from coordinator.ledger.steering import (
    LEAD_STEPS,
    MAX_ANNOUNCEMENT_CHARS,
    MOST_STEP,
    Helm,
    Orders,
    Steersman,
    announcements,
    read_helm,
)
from coordinator.store.engine import Database
from coordinator.store.models import Device, Member, Step
from peer.config.run import RunConfig
from peer.config.steering import MAX_CHANGES, Change
from tests.support.clocks import Clock
from tests.support.stores import KINDS, empty_store

REACHED = 10
CONFIG = RunConfig.from_mapping(
    {"averaging": {"target_batch_size": 64}, "checkpoints": {"every_steps": 10}, "data": {"microbatch_size": 8}}
)


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A run that has taken ten steps."""
    with empty_store(tmp_path, request.param) as made:
        with made.begin() as session:
            numbers = {"samples": 1, "loss_sum": 1.0, "loss_samples": 1, "devices": 1, "target_batch_size": 1}
            session.add(Step(step=REACHED, era=0, completed_at=1.0, **numbers))
        yield made


@pytest.fixture
def steersman(database: Database) -> Steersman:
    return Steersman(database, CONFIG, "os:tester", Clock(5.0))


def test_a_pause_holds_until_it_is_lifted(database: Database, steersman: Steersman) -> None:
    """Twice the same is refused, so that nobody believes to have done what another did."""
    with pytest.raises(ConfigError, match="not paused"):
        steersman.resume()
    steersman.pause()
    assert read_helm(database).beacon(REACHED).paused
    with pytest.raises(ConfigError, match="paused already"):
        steersman.pause()
    steersman.resume()
    assert not read_helm(database).beacon(REACHED).paused


def test_the_run_ends_with_the_step_that_was_named_last(database: Database, steersman: Steersman) -> None:
    """Not with one that is over; and not at all when that is taken back."""
    for step in (REACHED - 1, MOST_STEP + 1):
        with pytest.raises(ConfigError, match=f"reached step {REACHED}"):
            steersman.stop_at(step)
    steersman.stop_at(50)
    assert str(REACHED) in steersman.stop_at(REACHED)
    assert read_helm(database).beacon(REACHED).last_step == REACHED
    steersman.stop_at(None)
    assert read_helm(database).beacon(REACHED).last_step is None


def test_a_change_leaves_alone_what_it_does_not_name(database: Database, steersman: Steersman) -> None:
    """Whatever the order in which changes were made, each step has all that was said for it or earlier."""
    steersman.change(40, learning_rate_scale=0.25)
    steersman.change(20, learning_rate_scale=0.5, target_batch_size=64)
    steersman.change(None, checkpoint_every=7)
    helm = read_helm(database)
    first = Orders(REACHED + LEAD_STEPS, checkpoint_every=7)
    second = replace(first, from_step=20, learning_rate_scale=0.5, target_batch_size=64)
    assert helm.at(REACHED) == Orders(0)
    assert helm.at(REACHED + LEAD_STEPS) == first
    assert helm.at(20) == helm.at(39) == second
    assert helm.at(40) == replace(second, from_step=40, learning_rate_scale=0.25)
    assert helm.beacon(39).changes == (
        Change(from_step=20, learning_rate_scale=0.5, target_batch_size=64),
        Change(from_step=40, learning_rate_scale=0.25, target_batch_size=64),
    )


def test_a_step_takes_the_batch_that_is_in_force_before_it() -> None:
    """A phase from step 4 on, and an operator's change from step 6 on, first count for the steps after these."""
    phases = [{"from_step": 4, "target_batch_size": 20}]
    config = RunConfig.from_mapping({"averaging": {"target_batch_size": 10}, "phases": phases})
    helm = Helm(orders=(Orders(from_step=6, target_batch_size=30), Orders(from_step=8, target_batch_size=30)))
    assert [helm.batch_after(step, config) for step in range(3, 9)] == [10, 20, 20, 30, 30, 30]


@pytest.mark.parametrize(
    ("states", "lead"),
    [((), LEAD_STEPS), (("standby",), 0), (("standby", "standby"), 0), (("standby", "training"), LEAD_STEPS)],
)
def test_where_all_volunteers_stand_by_a_change_holds_at_once(
    database: Database, steersman: Steersman, states: tuple[str, ...], lead: int
) -> None:
    """They wait for the code of gradients to change, and no step comes before it does."""
    stays = put_trainers_online(database, len(states))
    for stay, state in zip(stays, states, strict=False):
        touch_sessions(database, {stay: checked_claim(REACHED, 0, 0.0, state, 5.0)})
    steersman.change(None, compression="8bit-blockwise")
    assert [order.from_step for order in read_helm(database).orders] == [REACHED + lead]


def test_the_last_word_on_a_step_counts(database: Database, steersman: Steersman) -> None:
    """A second change from the same step corrects the first."""
    steersman.change(20, target_batch_size=64)
    steersman.change(20, target_batch_size=32)
    assert read_helm(database).at(20).target_batch_size == 32


@pytest.mark.parametrize(
    ("from_step", "values", "reason"),
    [
        (20, {}, "Say what to change"),
        (REACHED + LEAD_STEPS - 1, {"checkpoint_every": 1}, "not before"),
        (MOST_STEP + 1, {"checkpoint_every": 1}, "not before"),
        (20, {"learning_rate_scale": 0.0}, "above 0"),
        (20, {"learning_rate_scale": float("nan")}, "above 0"),
        (20, {"learning_rate_scale": 1000.5}, "at most 1000"),
        (20, {"target_batch_size": 0}, "positive number"),
        (20, {"checkpoint_every": 0}, "at least one"),
        (20, {"compression": "zip"}, "one of float16, 8bit-blockwise, none, auto"),
        (20, {"powersgd_rank": 5}, "one of 0, 4, 8, 16, 32"),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    database: Database, steersman: Steersman, from_step: int, values: dict[str, float], reason: str
) -> None:
    """And nothing of it is kept."""
    with pytest.raises(ConfigError, match=reason):
        steersman.change(from_step, **values)  # type: ignore[arg-type]
    assert read_helm(database).orders == ()


@pytest.mark.parametrize(
    ("values", "consequence"),
    [
        (
            {"learning_rate_scale": 1000.0},
            "The next steps would be 1,000 times as long as now: the loss most likely div",
        ),
        ({"learning_rate_scale": 0.05}, "The next steps would be 20 times as short as now"),
        ({"target_batch_size": 640}, "Each step would take 20 times the samples"),
        ({"target_batch_size": 3}, "Each step would average 3 instead of 32 samples: gradients become noise"),
        ({"target_batch_size": 7}, "Each step would average 7 instead of 32 samples: gradients become noise"),
        ({"target_batch_size": 1}, "A target batch of 1 is below the 2 devices that train now"),
        ({"checkpoint_every": 501}, "would be 501 instead of 50: all since the last one can be lost"),
        ({"checkpoint_every": 1}, "would be 1 instead of 50: the keeper's disk may not keep up"),
    ],
)
def test_a_change_far_from_what_holds_is_confirmed_first(
    database: Database, steersman: Steersman, values: dict[str, float], consequence: str
) -> None:
    """Nothing is done until then; the sentence says what would happen; a change within ten times is not asked about."""
    steersman.change(15, learning_rate_scale=1.0, target_batch_size=32, checkpoint_every=50, confirmed=True)
    put_trainers_online(database, 2)
    before = read_helm(database)
    with pytest.raises(UnconfirmedError) as caught:
        steersman.change(20, **values)  # type: ignore[arg-type]
    assert consequence in caught.value.consequences
    assert str(caught.value) == f"{caught.value.consequences} Nothing is done yet: add --yes to do it."
    assert read_helm(database) == before
    steersman.change(20, **values, confirmed=True)  # type: ignore[arg-type]
    assert read_helm(database) != before


def test_a_change_is_compared_with_what_holds_at_its_step(database: Database, steersman: Steersman) -> None:
    """Ten times in either direction is ordinary, also after a change that is still to come."""
    steersman.change(20, learning_rate_scale=10.0)
    with pytest.raises(UnconfirmedError):
        steersman.change(19, learning_rate_scale=100.0)
    steersman.change(30, learning_rate_scale=100.0)
    steersman.change(40, learning_rate_scale=10.0)
    assert read_helm(database).at(40).learning_rate_scale == 10.0


def test_the_code_of_gradients_holds_from_its_step(database: Database, steersman: Steersman) -> None:
    """A change leaves as it was what it does not name; what was never named is the run file's."""
    said = steersman.change(20, compression="8bit-blockwise", powersgd_rank=8)
    assert said == "From step 20 on: compression 8bit-blockwise, powersgd rank 8."
    steersman.change(30, powersgd_rank=0, confirmed=True)
    helm = read_helm(database)
    found = [helm.averaging_after(step, CONFIG) for step in (19, 20, 30)]
    assert [(each.compression, each.powersgd_rank) for each in found] == [
        ("float16", 0),
        ("8bit-blockwise", 8),
        ("8bit-blockwise", 0),
    ]
    assert helm.beacon(20).changes[0] == Change(from_step=20, compression="8bit-blockwise", powersgd_rank=8)


@pytest.mark.parametrize(
    ("before", "values", "consequence"),
    [
        ({"compression": "8bit-blockwise"}, {"compression": "none"}, "about 4 times the bytes"),
        ({"compression": "float16"}, {"compression": "none"}, ""),
        ({"powersgd_rank": 8}, {"powersgd_rank": 0}, "whole gradients in place of their factors"),
        ({"powersgd_rank": 4}, {"powersgd_rank": 32}, "about 8 times the bytes"),
        ({"powersgd_rank": 4}, {"powersgd_rank": 4, "compression": "8bit-blockwise"}, ""),
        ({"powersgd_rank": 0}, {"powersgd_rank": 4}, ""),
    ],
)
def test_a_code_that_sends_far_more_is_confirmed_first(
    steersman: Steersman, before: dict[str, Any], values: dict[str, Any], consequence: str
) -> None:
    """Less is never asked about, nor twice as much."""
    steersman.change(15, **before, confirmed=True)
    if not consequence:
        steersman.change(20, **values)
        return
    with pytest.raises(UnconfirmedError, match=consequence):
        steersman.change(20, **values)


@pytest.mark.parametrize(
    ("averaging", "values", "reason"),
    [
        ({"aggregation": "centered_clipping"}, {"powersgd_rank": 4}, "averaged as they are"),
    ],
)
def test_a_code_that_the_run_cannot_have_is_refused(
    database: Database, averaging: dict[str, Any], values: dict[str, Any], reason: str
) -> None:
    """And a peer would not follow such a beacon either."""
    config = RunConfig.from_mapping({"averaging": averaging})
    with pytest.raises(ConfigError, match=reason):
        Steersman(database, config, "os:tester", Clock(5.0)).change(20, **values)
    assert read_helm(database).orders == ()
    assert Change(from_step=20, **values).averaging(config.averaging) == config.averaging


def put_trainers_online(database: Database, count: int) -> list[str]:
    """Let devices train now, by the steersman's clock, and one only assist; return the stays, in this order."""
    with database.begin() as session:
        member = Member(name="ada", created_at=0.0, revoked_reason="")
        session.add(member)
        session.flush()
        for number in range(count + 1):
            role = "trainer" if number < count else "auxiliary"
            session.add(device(member.id, number, role))
    return [open_session(database, f"{number:032x}", "", "", 5.0) for number in range(count + 1)]


def device(member_id: int, number: int, role: str) -> Device:
    key = {"id": f"{number:032x}", "public_key": bytes([number]) * 32, "peer_id": f"peer-{number}"}
    return Device(**key, member_id=member_id, number=number, role=role, created_at=0.0)


def test_no_more_changes_are_to_come_than_a_beacon_holds(database: Database, steersman: Steersman) -> None:
    """So every peer has heard of each before its step; one that is to come may still be corrected."""
    for number in range(MAX_CHANGES - 1):
        steersman.change(20 + number, checkpoint_every=3)
    with pytest.raises(ConfigError, match="wait for the next"):
        steersman.change(99, checkpoint_every=3)
    steersman.change(20, checkpoint_every=4)
    assert read_helm(database).at(20).checkpoint_every == 4


def test_announcements_are_one_line_each_and_come_once(database: Database, steersman: Steersman) -> None:
    """Whoever has heard up to a number hears what is newer; what is no line, or too long, is refused."""
    steersman.announce("  The run moves\non Sunday. ")
    [first] = announcements(database)
    assert (first.text, first.at) == ("The run moves on Sunday.", 5.0)
    steersman.announce("It has moved.")
    assert [news.text for news in announcements(database, after=first.id)] == ["It has moved."]
    assert announcements(database, since=6.0) == []
    for text in ("", "   ", "a" * (MAX_ANNOUNCEMENT_CHARS + 1), "red \x1b[31m"):
        with pytest.raises(ConfigError, match="one line"):
            steersman.announce(text)
    assert not read_helm(database).paused
