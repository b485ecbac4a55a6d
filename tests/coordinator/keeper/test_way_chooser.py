"""The keeper's choice of the way to average, over a real database."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from auth.errors import ConfigError
from coordinator.keeper.way_chooser import MEASURED_STEPS, STEPS_BETWEEN, WayChooser
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.sessions import checked_claim, open_session, touch_sessions
from coordinator.ledger.steering import BY_KEEPER, LEAD_STEPS, Steersman, read_helm
from coordinator.members.audit import audit_log
from coordinator.store.engine import Database
from coordinator.store.models import Device, Member
from peer.averaging.shares import GroupLines
from peer.config.run import RunConfig
from peer.config.steering import MAX_CHANGES
from tests.support.clocks import Clock
from tests.support.ledgers import keeper_at
from tests.support.stores import empty_store

CHOOSES = RunConfig.from_mapping({"averaging": {"compression": "auto", "averaging_timeout_s": 1000.0}})
SHAPES = ((1000, 1000),)
FAST, SLOW = 25e6, 125_000.0  # bytes per second


def homes(rate: float) -> GroupLines:
    """The keeper and four volunteers with such lines."""
    return GroupLines((None, *[rate] * 4), (True,) * 5, (True, *[False] * 4), ())


@dataclass
class LiveRun:
    """A run of which the keeper takes a step whenever it is told to, with a batch of ten seconds."""

    database: Database
    config: RunConfig = CHOOSES
    step: int = 0
    clock: Clock = field(default_factory=lambda: Clock(5.0))

    def __post_init__(self) -> None:
        self.chooser = WayChooser(self.database, self.config, SHAPES, self.clock)
        self.operator = Steersman(self.database, self.config, "os:tester", self.clock)

    def take(self, steps: int, rate: float, batch_s: float = 10.0) -> None:
        """Take steps in groups with such lines, and look after each."""
        for _ in range(steps):
            self.step += 1
            self.tell_step()
            self.chooser.step_taken(homes(rate), batch_s)
            self.chooser.look(read_helm(self.database), self.step, ())

    def tell_step(self) -> None:
        """Write the step as the keeper does."""
        keeper_at(self.database, self.step, self.clock())

    @property
    def ways(self) -> list[tuple[int, str | None, int | None]]:
        """The changes of the way: from which step on, and to what."""
        return [(each.from_step, each.compression, each.powersgd_rank) for each in read_helm(self.database).orders]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LiveRun]:
    """A run that chooses by itself."""
    with empty_store(tmp_path, "sqlite") as database:
        yield LiveRun(database)


def test_a_choice_is_a_change_for_all_peers_with_its_reason(run: LiveRun, caplog: pytest.LogCaptureFixture) -> None:
    """The beacon carries it; the log, the audit log and what operators read have the reason, with the keeper's name."""
    caplog.set_level(logging.INFO)
    run.take(MEASURED_STEPS - 1, SLOW)
    assert run.ways == []
    run.take(1, SLOW)
    helm = read_helm(run.database)
    [change] = helm.beacon(run.step + LEAD_STEPS).changes
    assert change.from_step == MEASURED_STEPS + LEAD_STEPS
    assert (change.compression, change.powersgd_rank) == ("float16", 16)
    assert helm.why.startswith("`powersgd_rank: 16`: a round takes ")
    [entry] = audit_log(run.database, 10)
    assert (entry.actor, entry.act) == (BY_KEEPER, "steer")
    assert entry.detail == f"From step 8 on: compression float16, powersgd rank 16. {helm.why}"
    assert entry.detail in caplog.messages


def test_the_way_follows_the_lines_but_not_every_one_of_them(run: LiveRun) -> None:
    """It is kept while it leaves enough time, and no two looks are close to each other."""
    run.take(MEASURED_STEPS + 2 * STEPS_BETWEEN, SLOW)
    assert len(run.ways) == 1
    run.take(STEPS_BETWEEN - 1, FAST)
    assert len(run.ways) == 1
    run.take(1, FAST)
    assert run.ways[1:] == [(run.step + LEAD_STEPS, "float16", 0)]
    run.take(STEPS_BETWEEN, FAST)
    assert len(run.ways) == 2


def test_a_line_that_is_now_slow_and_now_fast_changes_a_run_ever_more_seldom(run: LiveRun) -> None:
    """After each return to a finer way the next one has to wait twice as long."""
    for _ in range(16):
        run.take(2 * STEPS_BETWEEN, SLOW)
        run.take(2 * STEPS_BETWEEN, FAST)
    returns = [step for step, _, rank in run.ways if rank == 0]
    waits = [later - earlier for earlier, later in pairwise(returns)]
    assert len(waits) >= 3
    assert all(wait >= STEPS_BETWEEN * 2**number for number, wait in enumerate(waits))


def test_one_group_without_its_slow_peers_does_not_change_the_way(run: LiveRun) -> None:
    """They would stand by for good: nobody asks a peer that is in no group."""
    run.take(MEASURED_STEPS + STEPS_BETWEEN - 1, SLOW)
    run.take(1, FAST)
    assert len(run.ways) == 1


def test_a_change_that_is_to_come_is_not_made_again(run: LiveRun) -> None:
    """A keeper that was started anew has only the database to know of it."""
    run.take(MEASURED_STEPS, SLOW)
    again = LiveRun(run.database, step=run.step - MEASURED_STEPS)
    again.take(MEASURED_STEPS, SLOW)
    assert len(run.ways) == 1


def test_what_an_operator_says_ends_the_choice_until_it_is_given_back(run: LiveRun) -> None:
    """A change of something else does not; `auto` names no rank."""
    run.take(1, SLOW)
    run.operator.change(None, checkpoint_every=100)
    assert read_helm(run.database).chooses(run.config)
    run.operator.change(None, compression="none", confirmed=True)
    run.take(3 * STEPS_BETWEEN, SLOW)
    assert not read_helm(run.database).chooses(run.config)
    assert run.ways[-1][1:] == ("none", None)
    with pytest.raises(ConfigError, match="name no rank"):
        run.operator.change(None, compression="auto", powersgd_rank=4)
    with pytest.raises(ConfigError, match="name no step"):
        run.operator.change(9000, compression="auto")
    assert run.operator.change(None, compression="auto") == "The keeper chooses the way to average."
    assert run.ways[-1][1:] == ("none", None)
    run.take(1, SLOW)
    assert run.ways[-1][1:] == ("float16", 16)


def test_a_choice_comes_too_late_for_an_operator_who_has_just_ended_it(run: LiveRun) -> None:
    """The keeper has looked before, and nothing of its choice is kept."""
    run.take(MEASURED_STEPS - 1, SLOW)
    before = read_helm(run.database)
    run.operator.change(None, compression="none", confirmed=True)
    run.chooser.step_taken(homes(SLOW), 10.0)
    run.chooser.look(before, run.step, ())
    assert [way[1] for way in run.ways] == ["none"]
    assert audit_log(run.database, 10) == []


def test_only_a_run_to_which_it_was_given_is_changed(run: LiveRun) -> None:
    """An operator may give it the choice in a run whose file names a compression, and take it back by a rank."""
    named = LiveRun(run.database, RunConfig())
    named.take(2 * STEPS_BETWEEN, SLOW)
    assert named.ways == []
    named.operator.change(None, compression="auto")
    assert read_helm(named.database).chooses(named.config)
    named.operator.change(None, powersgd_rank=8)
    assert not read_helm(named.database).chooses(named.config)


def test_fast_lines_and_unknown_rates_choose_sixteen_bits(run: LiveRun) -> None:
    """Before anybody's rate is known nothing is measured."""
    run.take(2 * STEPS_BETWEEN, FAST, batch_s=float("inf"))
    assert run.ways == []
    run.take(MEASURED_STEPS, FAST)
    assert run.ways == [(run.step + LEAD_STEPS, "float16", 0)]


def test_after_a_return_to_a_checkpoint_it_looks_soon(run: LiveRun) -> None:
    """Not only at the step of the next look before the return."""
    run.step = 1000
    run.take(MEASURED_STEPS, 10 * FAST)
    run.step = 100
    run.tell_step()
    run.take(STEPS_BETWEEN + MEASURED_STEPS, SLOW)
    assert run.ways[0][1:] == ("float16", 16)


def test_a_return_to_a_checkpoint_undoes_the_choices_after_it(run: LiveRun) -> None:
    """Otherwise they would hold again from their steps on, whatever the lines are like, or an operator says, then."""
    run.take(MEASURED_STEPS, FAST)
    run.take(40 * STEPS_BETWEEN, SLOW)
    assert [way[1:] for way in run.ways] == [("float16", 0), ("float16", 16)]
    run.operator.change(None, checkpoint_every=50)
    run.step = MEASURED_STEPS + LEAD_STEPS
    Ledger(run.database, run.config, clock=run.clock).roll_back(run.step)
    assert [way[1:] for way in run.ways] == [("float16", 0), ("float16", 0)]  # the operator's word stays
    run.tell_step()
    run.take(2 * STEPS_BETWEEN, SLOW)
    assert run.ways[1][1:] == ("float16", 16)


def test_an_order_that_is_to_come_does_not_make_the_keeper_repeat_itself(run: LiveRun) -> None:
    """An operator has named a way for later, and given the choice back after that."""
    run.tell_step()
    run.operator.change(1000, compression="float16", powersgd_rank=0)
    run.operator.change(None, compression="auto")
    run.take(10 * STEPS_BETWEEN, SLOW)
    assert [way for way in run.ways if way[2] == 16] == [(MEASURED_STEPS + LEAD_STEPS, "float16", 16)]


def test_the_reason_is_that_of_the_code_in_force(run: LiveRun) -> None:
    """An operator's word ends it, and has no reason of its own."""
    run.take(MEASURED_STEPS, SLOW)
    assert read_helm(run.database).why
    run.operator.change(None, compression="none", powersgd_rank=0, confirmed=True)
    run.operator.change(None, compression="auto")
    assert read_helm(run.database).why == ""


HOME = 1.25e6  # bytes per second
LARGE = ((60_000, 1000),)  # 62 MB in 8 bits
PATIENT_S = 60.0


@pytest.fixture
def large(run: LiveRun) -> LiveRun:
    """A run whose model no home line passes in 8 bits."""
    averaging = {"compression": "auto", "averaging_timeout_s": PATIENT_S}
    found = LiveRun(run.database, RunConfig.from_mapping({"averaging": averaging}))
    found.chooser = WayChooser(found.database, found.config, LARGE, found.clock)
    return found


def volunteers_are(run: LiveRun, *states: str) -> None:
    """Let volunteers be there who say this of themselves."""
    with run.database.begin() as session:
        session.add(Member(id=1, name="ada", created_at=0.0, revoked_reason=""))
        session.flush()
        for number in range(len(states)):
            key = {"id": f"{number:032x}", "public_key": bytes([number]) * 32, "peer_id": f"peer-{number}"}
            session.add(Device(**key, member_id=1, number=number, role="trainer", created_at=0.0))
    for number, state in enumerate(states):
        stay = open_session(run.database, f"{number:032x}", "", "", run.clock())
        touch_sessions(run.database, {stay: checked_claim(run.step, 0, 0.0, state, run.clock())})


@pytest.mark.parametrize("reached", [7, 8])
def test_where_all_volunteers_stand_by_another_way_holds_at_once(large: LiveRun, reached: int) -> None:
    """No step would come, so none can be waited for; the next look finds the way in force.

    The last trainer may have reported a step that the keeper has not taken.
    """
    large.step = reached
    large.tell_step()
    volunteers_are(large, "standby")
    for _ in range(3):
        large.chooser.look(read_helm(large.database), 7, (HOME, HOME))
    assert large.ways == [(7, "float16", 16)]
    helm = read_helm(large.database)
    assert helm.why.startswith("`powersgd_rank: 16`: 2 volunteers whose lines are too slow for `8bit-blockwise` can")
    assert helm.beacon(7).at(7).powersgd_rank == 16


@pytest.mark.parametrize("compression", ["8bit-blockwise", "auto"])
def test_nobody_is_let_in_where_the_keeper_does_not_choose_or_no_way_is_passed(
    large: LiveRun, compression: str
) -> None:
    """An operator's word holds, and a claim of almost no line decides nothing."""
    large.tell_step()
    large.operator.change(None, compression=compression)
    before = large.ways
    volunteers_are(large, "standby")
    large.chooser.look(read_helm(large.database), 0, (HOME if compression != "auto" else 10.0,))
    large.chooser.look(read_helm(large.database), 0, ())
    assert large.ways == before


@pytest.mark.parametrize("others", [("starting",), ("syncing", "standby"), ("training",)])
def test_nothing_changes_at_once_while_somebody_may_begin_to_train(large: LiveRun, others: tuple[str, ...]) -> None:
    """A look at the swarm may miss who trains, and a fast device may compile for minutes before it does."""
    large.tell_step()
    volunteers_are(large, "standby", *others)
    large.chooser.look(read_helm(large.database), 0, (HOME,))
    assert large.ways == []


def test_volunteers_who_stand_by_are_let_in_at_a_coming_step(large: LiveRun) -> None:
    """The others train meanwhile, so all have to hear of the change first."""
    for _ in range(MEASURED_STEPS):
        large.step += 1
        large.tell_step()
        large.chooser.step_taken(homes(FAST), 60.0)
        large.chooser.look(read_helm(large.database), large.step, (HOME, HOME, FAST))
    assert large.ways == [(large.step + LEAD_STEPS, "float16", 16)]
    assert "2 volunteers whose lines are too slow" in read_helm(large.database).why


def test_with_too_many_changes_to_come_it_tries_again(run: LiveRun, caplog: pytest.LogCaptureFixture) -> None:
    """The warning says why nothing was changed."""
    run.tell_step()
    for number in range(MAX_CHANGES - 1):
        run.operator.change(20 + number, checkpoint_every=500 + number)
    run.take(MEASURED_STEPS, SLOW)
    assert "powersgd_rank: 16 is not chosen yet: 7 changes are to come already" in caplog.text
    run.take(3 * STEPS_BETWEEN, SLOW)
    assert run.ways[-1][1:] == ("float16", 16)
