"""A keeper's loop, and steps that were taken while it was away; real keepers are in tests/system."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from auth.errors import StorageError
from coordinator.checkpoints.manifest import MANIFEST, Manifest, StoredCheckpoint
from coordinator.keeper.keeper import SURVIVORS_STATE_S, SURVIVORS_TOLD_S, Keeper
from coordinator.keeper.way_chooser import MEASURED_STEPS, WayChooser
from coordinator.ledger.keeper_status import KeeperView, read_swarm_status, write_swarm_status
from coordinator.ledger.speed import batch_left_s
from coordinator.ledger.steering import Steersman
from coordinator.run.checkpoint_names import checkpoint_name
from coordinator.run.settings import Policy
from coordinator.statistics.swarm_health import read_figures
from coordinator.store.engine import Database
from coordinator.store.models import Step
from peer.averaging.shares import NOBODY, GroupLines
from peer.config.run import RunConfig
from peer.config.steering import Steering
from peer.reporting.metrics import RoundTally
from peer.reporting.suspicions import Suspicion, WaitingSuspicions
from peer.swarm.swarm import StepOutcome, SwarmProgress
from tests.support.ledgers import CONFIG, add_members
from tests.support.receipts import key_of, pseudonym_of
from tests.support.stores import empty_store

FULL = OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full"))
MOVED = "/ip4/192.0.2.8/tcp/31337/p2p/QmKeeper"


@dataclass
class Scene:
    """A keeper whose swarm, ledger and lock are made up; each look at the clock is a second later."""

    database: Database
    recorded: int  # the last step that the ledger knows, by reports or receipts
    step: int = 2  # of the keeper's state
    reached: int = 18  # by survivors, if there are any
    found_at_s: float = float("inf")  # when survivors come into view
    takes_s: float = 5.0  # how long they need to agree on a state
    stands_still: bool = False  # nobody else trains with the keeper
    step_is_shared: bool = True  # others are seen to have taken its newest step, too
    now: float = 0.0
    done: list[str] = field(default_factory=list)
    addresses: tuple[str, ...] = (MOVED,)
    state_is_own: bool = True
    is_disputed: bool = False  # the swarm's state
    disk_is_full: bool = False  # the database's
    checkpoints_dir: Path = Path()
    ledgers_era: int = 0  # above the swarm's once an operator has gone back to a checkpoint
    told: tuple[str, ...] = ()  # what the sessions could tell when the keeper looked for survivors
    alarmed: list[tuple[object, ...]] = field(default_factory=list)  # the steps that the alarms were told of
    suspicions: WaitingSuspicions = field(default_factory=WaitingSuspicions)
    config: RunConfig = CONFIG  # the chooser's
    lines: GroupLines = NOBODY
    batch_s: float = math.inf
    slow_lines: tuple[float, ...] = ()

    def clock(self) -> float:
        """Unix seconds."""
        self.now += 1.0
        return self.now

    @property
    def is_behind(self) -> bool:
        """Whether survivors are in view."""
        status = read_swarm_status(self.database)
        self.told = () if status is None else status.addresses
        return self.now >= self.found_at_s and self.step < self.reached

    @property
    def state(self) -> Any:
        """The swarm's."""
        return self

    def advance(self) -> StepOutcome | None:
        """Take the survivors' state as soon as they agree; with nobody ahead, average a step."""
        self.done.append("advanced")
        if self.stands_still and not self.is_behind:
            return None
        if self.is_behind and self.now < self.found_at_s + self.takes_s:
            return None
        averaged = not self.is_behind
        self.step = self.step + 1 if averaged else self.reached
        return StepOutcome(self.step, 0, averaged, 2, 64, 0.1, receipt="a receipt" if averaged else "")

    def restore(self, step: int | StoredCheckpoint, era: int) -> None:
        """The swarm's, or the checkpoints'."""
        step = step if isinstance(step, int) else step.manifest.step
        self.done.append(f"restored {step} in era {era}")
        self.is_disputed = False

    def last_known_step(self) -> int:
        """The ledger's."""
        return self.recorded

    def roll_back(self, step: int) -> int:
        """The ledger's."""
        self.done.append(f"undone after {step}")
        return 1

    def check(self) -> None:
        """The lock's."""
        self.done.append("still the only one")

    def take_receipt(self, _device_id: str, step: int, receipt: str) -> None:
        """The ledger's."""
        if self.disk_is_full:
            raise FULL
        self.done.append(f"{receipt} of step {step}")

    def access_token(self, _now: float) -> Any:
        """The credentials'."""
        return self

    device_id = "keeper-1"
    era = 0  # the swarm's
    sketch = ()

    def step_taken(self, *facts: object) -> None:
        """The alarms'."""
        self.alarmed.append(facts)

    def write_if_due(self, stopping: bool = False) -> None:
        """The checkpoints'."""
        self.done += ["last checkpoint"] if stopping else []

    def current_era(self) -> int:
        """The ledger's."""
        if self.disk_is_full:
            raise FULL
        return self.ledgers_era

    def last_counting_step(self, _era: int) -> int | None:
        """The ledger's."""
        return None

    def leave(self) -> None:
        """The swarm's."""
        self.done.append("left")

    def resume(self) -> None:
        """What a keeper does first."""
        self.keeper().resume_ledger(lambda: False)

    def keeper(self) -> Keeper:
        """Over these parts."""
        of_scene = ("directory", "swarm", "ledger", "membership", "credentials", "checkpointing")
        parts: dict[str, Any] = dict.fromkeys(("config", "model"))
        parts |= dict.fromkeys((*of_scene, "devices", "lock"), self)
        parts["alarms"] = SimpleNamespace(step_taken=self.step_taken, look=lambda _step: None)
        chooser = WayChooser(self.database, self.config, [(1000, 1000)], self.clock)
        return Keeper(**parts, chooser=chooser, suspicions=self.suspicions, database=self.database, clock=self.clock)


@dataclass
class Serving(Scene):
    """The same with a database that takes everything, over one pass of the keeper's loop or more."""

    stands_still: bool = True
    passes: int = 0  # that have ended
    heard: Steering | None = None  # by the swarm, of its operator
    every_steps: int | None = None  # the checkpoints'
    has_ended: bool = False  # the run
    turned_away: int = 0  # joiners
    issued_at: float = 1000.0  # the keeper's token
    expires_at: float = 4000.0
    settings: Any = None
    quarantine_policy = Policy()
    heard_at = 17.0
    rounds = RoundTally().with_failure().with_success(3.0)
    census = (("trainer", True, 2),)
    missing_auxiliaries = 2
    device_key = key_of("keeper-1")
    token_jwt = "a new token"

    def __post_init__(self) -> None:
        self.settings = self

    def steer(self, steering: Steering) -> None:
        """The swarm's."""
        self.heard = steering

    def progress(self) -> SwarmProgress:
        """The swarm's."""
        return SwarmProgress(self.step, 0, swarm_samples=30, target_batch_size=64, peers=3, samples_per_second=0.0)

    def access_token(self, _now: float) -> Any:
        """The credentials'."""
        return SimpleNamespace(
            run="demo", device_id=self.device_id, issued_at=self.issued_at, expires_at=self.expires_at
        )

    def grant_keeper(self, public_key: bytes, receipt_key: str) -> Serving:
        """The membership's."""
        assert public_key == self.device_key.public_key
        assert receipt_key == pseudonym_of("keeper-1", "demo")
        return self

    def store_token(self, jwt: str) -> None:
        """The credentials'."""
        self.done.append(jwt)

    def revocations_jwt(self) -> str:
        """The membership's."""
        return "the revoked"

    def store_revocations(self, jwt: str) -> None:
        """The credentials'."""
        self.done.append(jwt)

    def write_for_joiners(self) -> None:
        """The checkpoints'."""
        self.done.append("a checkpoint for joiners")

    def look(self, step: int) -> None:
        """The devices'."""
        self.done.append(f"looked at devices at step {step}")
        self.passes += 1

    def receipts(self) -> list[str]:
        """The receipts that the ledger was told of, in words."""
        return [what for what in self.done if "receipt" in what]

    def run(self, keeper: Keeper | None = None, passes: int = 1) -> None:
        """Let this keeper, or a new one, pass its loop so often."""
        until = self.passes + passes
        (keeper or self.keeper()).run(lambda: self.passes >= until)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """A run's database with what the keeper before has seen, elsewhere."""
    with empty_store(tmp_path, "sqlite") as database:
        write_swarm_status(
            database,
            step=2,
            samples_accumulated=0,
            target_batch_size=64,
            peers=2,
            samples_per_second=1.0,
            eta_s=None,
            addresses=("/ip4/192.0.2.7/tcp/31337/p2p/QmKeeper",),
            now=0.0,
        )
        yield database


def test_survivors_are_told_where_it_is_and_nothing_is_undone(database: Database) -> None:
    """Found late, they get all the time to agree on a state that they have who are found at once."""
    scene = Scene(database, recorded=18, found_at_s=SURVIVORS_TOLD_S - 5, takes_s=SURVIVORS_STATE_S - 10)
    scene.resume()
    assert scene.told == (MOVED,)
    assert scene.step == 18
    assert not scene.state_is_own
    assert set(scene.done) == {"advanced"}


def test_without_a_checkpoint_survivors_are_looked_for_too(database: Database) -> None:
    """The steps that the ledger knows are somewhere else then, if anywhere."""
    scene = Scene(database, recorded=18, step=0, found_at_s=5.0, takes_s=1.0)
    scene.resume()
    assert scene.step == 18
    assert set(scene.done) == {"advanced"}


def test_without_survivors_the_steps_after_its_checkpoint_are_undone(database: Database) -> None:
    """Not before sessions that were opened anew can have told anybody; it takes no step meanwhile."""
    scene = Scene(database, recorded=18)
    scene.resume()
    assert scene.now >= SURVIVORS_TOLD_S
    assert scene.done == ["still the only one", "undone after 2", "restored 2 in era 1"]


def test_where_it_has_moved_it_waits_for_whose_reports_have_yet_to_come(database: Database) -> None:
    """What it says of the swarm before it knows how far that is would make their reports implausible."""
    scene = Scene(database, recorded=2, found_at_s=SURVIVORS_TOLD_S - 5, stands_still=True)
    scene.resume()
    assert scene.step == 18


def test_with_nothing_to_undo_it_trains_with_whoever_is_there(database: Database) -> None:
    """The step counts like any other."""
    scene = Scene(database, recorded=2)
    scene.resume()
    assert (scene.step, scene.done) == (3, ["advanced"])


def test_keeper_returns_to_its_own_state_where_members_cannot_agree(database: Database) -> None:
    """None of theirs is more common than others, so all go back to the step that the keeper holds, once."""
    scene = Serving(database, recorded=2, is_disputed=True)
    scene.run(passes=2)
    assert [what for what in scene.done if "undone" in what or "restored" in what] == [
        f"undone after {scene.step}",
        f"restored {scene.step} in era 1",
    ]


def test_a_step_is_attested_once_others_have_taken_it_too(database: Database) -> None:
    """Their records show it, or their next step with the keeper; never twice, and after an orderly end's checkpoint."""
    seen = Serving(database, recorded=2, stands_still=False)
    seen.run()
    assert seen.receipts() == ["a receipt of step 3"]
    assert seen.done[-3:] == ["last checkpoint", "a receipt of step 3", "left"]
    unseen = Serving(database, recorded=2, stands_still=False, step_is_shared=False)
    unseen.run(passes=2)
    assert unseen.receipts() == ["a receipt of step 3"]
    assert unseen.done.index("a receipt of step 3") > unseen.done.index("looked at devices at step 3")


def test_a_step_that_the_others_left_without_the_keeper_is_not_attested(database: Database) -> None:
    """It was the keeper's alone, perhaps: the others have taken that step again, of other samples."""
    scene = Serving(database, recorded=2, stands_still=False, step_is_shared=False)
    keeper = scene.keeper()
    keeper.resume_ledger(lambda: False)
    assert scene.step == 3
    scene.found_at_s, scene.takes_s = 0.0, 0.0
    scene.run(keeper)
    assert scene.step == 18
    assert scene.receipts() == []


def test_a_new_run_waits_for_nobody(database: Database) -> None:
    """There can be no survivors."""
    scene = Scene(database, recorded=0, step=0)
    scene.resume()
    assert scene.done == []


def test_it_trains_on_while_its_database_takes_nothing(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    """What it cannot write is told in a sentence; the state that it holds is worth more, and is saved at the end."""
    scene = Scene(database, recorded=0, step=0, disk_is_full=True)
    scene.keeper().run(lambda: scene.step >= 3)
    assert scene.done == [*["advanced", "still the only one"] * 3, "last checkpoint", "left"]
    told = [record for record in caplog.records if record.levelname == "ERROR"]
    assert {record.getMessage().partition(" (")[0] for record in told} == {
        f"{what}: The disk of the run's database is full"
        for what in ("the receipt is not counted", "the keeper is neither steered nor seen")
    }
    assert len({record.lineno for record in told}) == 2  # so the log counts their repetitions apart


def test_a_return_without_a_checkpoint_ends_it_with_a_sentence(database: Database, tmp_path: Path) -> None:
    """An operator has gone back to a checkpoint that is gone since; nothing is undone, and the lock was asked first."""
    scene = Scene(database, recorded=18, ledgers_era=1, checkpoints_dir=tmp_path / "checkpoints")
    with pytest.raises(StorageError, match="holds no checkpoint to go back to"):
        scene.keeper().run(lambda: scene.step >= 3)
    assert scene.done == ["advanced", "still the only one"]


def test_a_pass_ends_with_what_else_it_looks_after(database: Database) -> None:
    """The lock first: nothing is written by a keeper that is no longer the only one."""
    scene = Serving(database, recorded=2)
    scene.run()
    assert scene.done == [
        "advanced",
        "still the only one",
        "the revoked",
        "looked at devices at step 2",
        "last checkpoint",
        "left",
    ]


def test_a_step_is_told_to_the_alarms(database: Database) -> None:
    """With the era that it was taken in and the state's sketch; what was taken from others tells of nothing."""
    scene = Serving(database, recorded=2, stands_still=False)
    scene.run()
    assert scene.alarmed == [(0, 3, ())]
    assert scene.state_is_own
    behind = Serving(database, recorded=2, found_at_s=0.0, takes_s=0.0)
    behind.run()
    assert (behind.step, behind.alarmed, behind.state_is_own) == (18, [], False)


def test_what_the_swarm_does_is_written_for_the_service(database: Database) -> None:
    """Its step and batch, when its own daemon was heard last, its speed by the steps that count, rounds and peers."""
    facts = {"era": 0, "samples": 60, "loss_sum": 0.0, "loss_samples": 0, "devices": 1, "target_batch_size": 64}
    with database.begin() as session:
        session.add_all(Step(step=step, completed_at=10.0 * step - 30.0, **facts) for step in (1, 2))
    Serving(database, recorded=2).run()
    status = read_swarm_status(database)
    assert status is not None
    speed = status.samples_per_second
    assert 0 < speed < 6.0
    left_s = batch_left_s(30, 64, speed)
    assert status == KeeperView(2, 0, 30, 64, 3, speed, left_s, (MOVED,), updated_at=17.0)
    figures = read_figures(database, since=0.0)
    assert (figures.rounds, figures.census, figures.missing_auxiliaries) == (Serving.rounds, Serving.census, 2)


def test_operators_steer_checkpoints_and_the_swarm(database: Database) -> None:
    """From the step on that they have named."""
    operator = Steersman(database, CONFIG, "os:tester", lambda: 0.0)
    operator.change(5, checkpoint_every=7, target_batch_size=128, confirmed=True)
    operator.pause()
    before, after = Serving(database, recorded=2, step=4), Serving(database, recorded=2, step=5)
    for scene in (before, after):
        scene.run()
        assert scene.heard is not None
        assert scene.heard.paused
        assert [change.target_batch_size for change in scene.heard.changes] == [128]
        assert scene.done.count("last checkpoint") == 1
    assert (before.every_steps, after.every_steps) == (None, 7)


def test_what_the_keeper_chooses_by_the_groups_lines_is_in_its_beacon(database: Database) -> None:
    """Where the run file leaves the way to average to it, once some steps have been measured."""
    slow = GroupLines((None, 125_000.0, 125_000.0), (True,) * 3, (True, False, False), ())
    chooses = RunConfig.from_mapping({"averaging": {"compression": "auto"}})
    scene = Serving(database, recorded=2, stands_still=False, config=chooses, lines=slow, batch_s=10.0)
    scene.run(passes=MEASURED_STEPS + 1)
    assert scene.heard is not None
    assert [(change.compression, change.powersgd_rank) for change in scene.heard.changes] == [("float16", 16)]


def test_a_run_that_has_ended_leaves_a_checkpoint_of_its_last_step(database: Database) -> None:
    """Before the keeper itself ends."""
    scene = Serving(database, recorded=2, has_ended=True)
    scene.run()
    assert scene.done.index("last checkpoint") < scene.done.index("the revoked")


@pytest.mark.parametrize(("now", "renewed"), [(2900.0, False), (3000.0, True)])
def test_its_token_is_renewed_when_two_thirds_of_its_time_are_over(
    database: Database, now: float, renewed: bool
) -> None:
    """Who was revoked it hears with every pass."""
    scene = Serving(database, recorded=2, now=now)
    scene.run()
    assert ("a new token" in scene.done) is renewed
    assert "the revoked" in scene.done


def test_a_suspicion_is_told_once_and_one_of_nobody_is_only_logged(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """By the keeper's own word, which the service judges."""
    add_members(database)
    scene = Serving(database, recorded=2)
    for peer_id in ("QmNobody", key_of("ada-1").peer_id):
        scene.suspicions.put(Suspicion(peer_id, "whoever", "d9", "step", 7, "claims step 1000000000"))
    scene.run(passes=2)
    told = [record.getMessage() for record in caplog.records if record.name.startswith("coordinator")]
    assert [text.partition(" (device")[0] for text in told] == [
        "No device here is the suspected peer 'QmNobody'.",
        "suspicious: keeper noticed at step 7: Ada's device claims step 1000000000",
    ]


def test_joiners_that_were_turned_away_get_a_checkpoint_each_time(database: Database) -> None:
    """One for all who came since the last pass, and none while nobody comes."""
    scene = Serving(database, recorded=2, turned_away=2)
    keeper, written = scene.keeper(), []
    for turned_away in (0, 2, 2, 3):
        scene.turned_away = turned_away
        scene.run(keeper)
        written.append(scene.done.count("a checkpoint for joiners"))
    assert written == [0, 1, 1, 2]


@pytest.mark.parametrize(("recorded", "undone"), [(5, []), (6, ["undone after 5"])])
def test_a_return_ends_at_the_newest_checkpoint_that_is_whole(
    database: Database, tmp_path: Path, recorded: int, undone: list[str]
) -> None:
    """Where the one that the operator chose is damaged, the steps after an older one are undone, too."""
    for step in (5, 6):
        (path := tmp_path / checkpoint_name(step)).mkdir()
        manifest = Manifest(format_version=1, run="r", step=step, era=0, created_at=0.0, probe_loss=None, files={})
        (path / MANIFEST).write_text(manifest.model_dump_json())
    (tmp_path / checkpoint_name(6) / MANIFEST).write_text("damaged")
    scene = Serving(database, recorded=recorded, step=9, ledgers_era=4, checkpoints_dir=tmp_path)
    scene.run()
    era = 1 if undone else 4  # a scene's ledger begins era 1
    assert scene.done[2 : 3 + len(undone)] == [*undone, f"restored 5 in era {era}"]
