"""Quarantine: suspicions are logged, enough of them or the operator cut a device off, and it can be lifted.

The keeper's word suffices alone; members' words suffice if they do without any one member.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from sqlalchemy import select

from auth.errors import ConfigError, QuarantinedError, RequestError, RevokedError
from auth.keys import AuthorityKey, peer_id_of
from auth.tokens import RevocationList, verify_revocations
from coordinator.members.audit import audit_log
from coordinator.members.devices import device_rows
from coordinator.members.erasure import erase
from coordinator.members.membership import Membership
from coordinator.members.quarantine import (
    INCIDENT_S,
    Accusation,
    QuarantineDecision,
    SuspicionReport,
    decide,
    hear,
    hear_all,
    incidents,
    members_may,
    quarantine_device,
    quarantines,
    release,
)
from coordinator.members.revocations import put_in_quarantine
from coordinator.run.settings import Policy
from coordinator.store.engine import Database
from coordinator.store.locks import Lock, one_at_a_time
from coordinator.store.models import Device, Refusal
from peer.control.events import CutOff
from peer.reporting.suspicions import Suspicion, WaitingSuspicions
from peer.runtime.repeats import MOST_WARNINGS, RepeatFilter
from tests.support.clocks import Clock
from tests.support.control_plane import TestCoordinator, connected, join_as, joined, serving
from tests.support.receipts import key_of
from tests.support.stores import let_others_wait
from tests.support.waiting import eventually

NOW = 10_000.0

POLICY = Policy(strikes=3, window_s=600.0)


def said(*witnesses: str | None, kind: str = "samples", every_s: float = 60.0) -> list[Accusation]:
    """One word of each, a minute apart, the last one now."""
    return [Accusation(NOW - every_s * number, witness, kind) for number, witness in enumerate(reversed(witnesses))]


def decided(words: list[Accusation], policy: Policy = POLICY, others_may: bool = True) -> QuarantineDecision | None:
    return decide(words, policy, others_may, NOW)


def test_the_keepers_words_count_alone() -> None:
    """Three of them are enough, two are not, and the reason names what was noticed."""
    assert decided(said(None, None)) is None
    verdict = decided([*said(None, None), Accusation(NOW, None, "step")])
    assert verdict == QuarantineDecision("failed checks within 10 minutes: samples 2 times, step", by_keeper=True)
    assert decided(said(None, None, None), others_may=False) is not None


def test_one_member_alone_never_gets_a_device_cut_off() -> None:
    """Not with a hundred words, nor with two of the keeper's that are too few."""
    alone = said(*["Mallory"] * 9)
    assert decided(alone) is None
    assert decided([*alone, *said(None, None, kind="step")]) is None


def test_two_members_who_each_say_it_often_enough_do() -> None:
    """Without either, three strikes remain; while members may not cut off more, nothing happens."""
    words = said("Ada", "Ada", "Ada") + said("Bob", "Bob", "Bob", kind="step")
    assert decided(words) is not None
    assert decided(words, others_may=False) is None
    assert decided(words[:-1]) is None


def test_who_notices_different_things_adds_up() -> None:
    """Each reducer sees only the part that it was sent: without the loudest one, three strikes of others remain."""
    verdict = decided(said("Ada", "Bob", "Carol", "Dan"))
    assert verdict is not None
    assert not verdict.by_keeper
    assert decided(said("Ada", "Bob", "Carol")) is None


def test_what_many_notice_at_once_is_one_strike() -> None:
    """An event that everybody sees is no worse than one that two have seen."""
    assert decided([Accusation(NOW - second, f"member {second}", "step") for second in range(int(INCIDENT_S))]) is None


@pytest.mark.parametrize("kind", ["reduction", "shown"])
def test_what_the_audit_of_a_round_proves_is_a_strike(kind: str) -> None:
    """The keeper's alone count; a member's word is against another's."""
    verdict = decided(said(None, None, None, kind=kind))
    assert verdict is not None
    assert verdict.by_keeper
    assert decided(said("Ada", "Ada", "Ada", kind=kind)) is None


def test_old_words_are_forgotten() -> None:
    """Only those within the window count."""
    assert decided(said(None, None, None, every_s=POLICY.window_s / 2)) is None


def test_zero_strikes_turn_it_off() -> None:
    """Nothing that is said cuts anybody off."""
    assert decided(said(*[None] * 9), Policy(strikes=0)) is None


WORDS = st.builds(
    Accusation,
    at=st.floats(NOW - 700, NOW),
    witness=st.sampled_from([None, "Ada", "Bob", "Carol"]),
    kind=st.sampled_from(["step", "samples"]),
)


@given(st.lists(WORDS, max_size=30), st.sampled_from(["Ada", "Bob", "Carol"]))
def test_no_single_member_makes_the_difference(words: list[Accusation], left_out: str) -> None:
    """Whatever was said: if words suffice, there are strikes enough without any one member's, too."""
    if decided(words) is not None:
        recent = [word for word in words if word.at > NOW - POLICY.window_s]
        assert len(incidents(word for word in recent if word.witness != left_out)) >= POLICY.strikes


@pytest.mark.parametrize(("active", "most"), [(1, 1), (4, 1), (8, 2), (40, 10)])
def test_members_words_cut_off_a_quarter_at_most(active: int, most: int) -> None:
    """Two who lie together cannot empty the run; one they always may."""
    assert members_may(most - 1, active)
    assert not members_may(most, active)


async def test_a_suspicion_names_the_member_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It comes over the session of whoever noticed; the suspected is named as the coordinator knows it."""
    async with (
        serving(tmp_path) as coordinator,
        joined(coordinator, tmp_path) as member,
        connected(coordinator) as client,
    ):
        mallory = (await join_as(coordinator, client, tmp_path / "mallory", "Mallory")).device_key.peer_id
        member.suspicions.put(Suspicion(mallory, "whoever", "d9", "step", 7, "claims step 1000000000"))
        member.start()
        await eventually(
            "the suspicion is recorded as refused", lambda: ("suspicion", "step") in coordinator.refusals()
        )
    assert "Ada noticed at step 7: Mallory's device claims step 1000000000" in caplog.text


async def test_a_suspicion_of_nobody_is_dropped_and_recorded(tmp_path: Path) -> None:
    """The session goes on, and no name is in the log."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        member.suspicions.put(Suspicion("QmNobody", "whoever", "d9", "step", 7, "claims step 1000000000"))
        member.start()
        await eventually(
            "the bad request is recorded as refused", lambda: ("session", "bad-request") in coordinator.refusals()
        )


@pytest.mark.parametrize(
    ("peer_id", "kind", "detail"),
    [("Qm1", "murder", "x"), ("Qm1", "step", "x" * 201), ("Qm1", "step", "two\nlines"), ("Qm\0", "step", "x")],
)
async def test_nonsense_is_no_suspicion(tmp_path: Path, peer_id: str, kind: str, detail: str) -> None:
    """What a peer writes into the operator's log is bounded and of a line."""
    async with serving(tmp_path) as coordinator:
        with pytest.raises(RequestError, match="kinds"):
            hear(coordinator.services.database, Policy(), SuspicionReport(peer_id, kind, 1, detail), "witness", 1.0)


AUTHORITY = AuthorityKey.generate()


class Run:
    """A keeper and members with a device each, who speak of each other."""

    def __init__(self, database: Database, clock: Clock, keys: list[bytes]) -> None:
        self.database, self.clock, self.policy = database, clock, Policy(strikes=3, window_s=3600.0)
        self.membership = Membership(database, AUTHORITY, "demo", 1e6, clock)
        self.keys = dict(zip(("Ada", "Bob", "Carol", "Mallory"), keys[1:], strict=False))
        self.devices = {"keeper": self.membership.grant_keeper(keys[0]).device_id}
        for name, key in self.keys.items():
            [code], pseudonym = self.membership.invite(name), hashlib.sha256(key).hexdigest()
            self.devices[name] = self.membership.join(key, code, receipt_key=pseudonym).device_id
        self.peer_ids = {"keeper": peer_id_of(keys[0])} | {name: peer_id_of(key) for name, key in self.keys.items()}

    def say(self, witness: str, of: str, times: int = 1, kind: str = "samples", device: str = "") -> None:
        """A minute passes before each word."""
        for _ in range(times):
            self.clock.now += 60
            claim = SuspicionReport(self.peer_ids[of], kind, 7, "claims 99 samples and brings 1")
            hear(self.database, self.policy, claim, device or self.devices[witness], self.clock.now)

    @property
    def listed(self) -> RevocationList:
        return verify_revocations(self.membership.revocations_jwt(), AUTHORITY.public_bytes, "demo")

    @property
    def quarantined(self) -> list[str]:
        return [row.member for row in quarantines(self.database)]

    def lift(self, name: str, device: str = "") -> list[str]:
        return release(self.database, name, device, "os:grace", self.clock.now)

    def impose(self, name: str, reason: str = "") -> str:
        return quarantine_device(self.database, name, self.devices[name][:8], reason, "os:grace", self.clock.now)


@pytest.fixture
def run(database: Database, clock: Clock, keys: list[bytes]) -> Run:
    return Run(database, clock, keys)


def test_the_keepers_strikes_cut_a_device_off(run: Run) -> None:
    """It is on the signed list and refused everywhere, with the reason; the operator sees it and by whose words."""
    token = run.membership.renew(run.keys["Mallory"]).token_jwt
    run.say("keeper", "Mallory", 2)
    assert run.quarantined == []
    run.say("keeper", "Mallory")
    assert run.listed.peer_ids == {run.peer_ids["Mallory"]}
    for attempt in (
        lambda: run.membership.renew(run.keys["Mallory"]),
        lambda: run.membership.join(run.keys["Mallory"]),
        lambda: run.membership.check(token),
    ):
        with pytest.raises(QuarantinedError, match=r"quarantine \(failed checks within 60 minutes: samples 3 times\)"):
            attempt()
    [row] = quarantines(run.database)
    assert (row.member, row.actor) == ("Mallory", "run:keeper")
    assert [(word.witness, word.kind, word.step) for word in row.words] == [("keeper", "samples", 7)] * 3
    [device] = device_rows(run.database, "Mallory")
    assert device.quarantined_reason == "failed checks within 60 minutes: samples 3 times"
    assert (device.revoked_at, device.revoked_reason) == (None, "")
    assert [(entry.actor, entry.act, entry.subject) for entry in audit_log(run.database, 9)] == [
        ("run:keeper", "quarantine", "Mallory")
    ]
    with run.database() as session:
        kinds = [row.kind for row in session.scalars(select(Refusal))]
    assert kinds == ["suspicion"] * 3 + ["quarantine"]


def test_lifted_it_comes_back_and_begins_anew(run: Run) -> None:
    """The list gets shorter under a higher number; what was said before the lifting no longer counts."""
    run.say("keeper", "Mallory", 3)
    before = run.listed.serial
    assert run.lift("Mallory") == [run.devices["Mallory"]]
    assert (run.listed.serial, run.listed.peer_ids) == (before + 1, frozenset())
    assert run.membership.renew(run.keys["Mallory"]).member == "Mallory"
    run.say("keeper", "Mallory", 2)
    assert run.quarantined == []
    run.say("keeper", "Mallory")
    assert run.quarantined == ["Mallory"]


def test_two_members_words_suffice_one_members_never_do(run: Run, keys: list[bytes]) -> None:
    """A member's second device adds nothing; another member's words do."""
    second = run.membership.join(keys[5], run.membership.invite("Ada")[0]).device_id
    run.say("Ada", "Mallory", 5)
    run.say("Ada", "Mallory", 5, device=second)
    assert run.quarantined == []
    run.say("Bob", "Mallory", 2)
    assert run.quarantined == []
    run.say("Bob", "Mallory")
    [row] = quarantines(run.database)
    assert (row.member, row.actor) == ("Mallory", "run:members")
    assert {word.witness for word in row.words} == {"Ada", "Bob"}


def test_a_suspicion_of_the_keeper_is_told_once(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """One of nobody is only logged."""
    waiting = WaitingSuspicions()
    for peer_id in ("QmNobody", run.peer_ids["Ada"]):
        waiting.put(Suspicion(peer_id, "whoever", "d9", "step", 7, "claims step 1000000000"))
    for _ in range(2):
        hear_all(run.database, run.policy, waiting, run.devices["keeper"], run.clock)
    told = [record.getMessage() for record in caplog.records if record.name.startswith("coordinator")]
    assert [text.partition(" (device")[0] for text in told] == [
        "No device here is the suspected peer 'QmNobody'.",
        "suspicious: keeper noticed at step 7: Ada's device claims step 1000000000",
    ]


def test_a_storm_of_suspicions_keeps_no_quarantine_out_of_the_log(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """Nor do suspicions of a device that is cut off already."""
    with caplog.filtering(RepeatFilter(Clock(0.0))):
        run.say("keeper", "Ada", 3 + 2 * MOST_WARNINGS)
        run.say("keeper", "Bob", 3)
    assert [text.partition("'s device")[0] for text in caplog.messages if "is in quarantine" in text] == ["Ada", "Bob"]


def test_who_is_cut_off_or_speaks_of_itself_is_no_witness(run: Run) -> None:
    """Words of a quarantined or revoked device, and of the suspected member's own, do not count."""
    run.say("Carol", "Ada", 4)
    run.impose("Carol")
    run.say("Bob", "Ada", 4)
    run.say("Ada", "Ada", 4)
    assert run.quarantined == ["Carol"]


def test_members_words_alone_do_not_empty_the_run(run: Run) -> None:
    """Of four active devices they cut off one; the keeper's words have no such bound."""
    for of in ("Bob", "Mallory"):
        for witness in ("Ada", "Carol"):
            run.say(witness, of, 3)
    assert run.quarantined == ["Bob"]
    run.say("keeper", "Mallory", 3)
    assert set(run.quarantined) == {"Bob", "Mallory"}


def test_the_keeper_is_never_cut_off(run: Run) -> None:
    """Whatever all members say of it; what they say is kept."""
    for witness in ("Ada", "Bob", "Carol"):
        run.say(witness, "keeper", 4)
    assert run.listed.peer_ids == frozenset()
    with run.database() as session:
        assert len(session.scalars(select(Refusal)).all()) == 12


def test_a_flood_of_words_is_one_word(run: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of the same within the minute is passed over; older words of a member give way to newer ones."""
    for _ in range(5):
        claim = SuspicionReport(run.peer_ids["Mallory"], "step", 1, "x")
        hear(run.database, run.policy, claim, run.devices["Ada"], clock.now)
    with run.database() as session:
        assert len(session.scalars(select(Refusal)).all()) == 1
    monkeypatch.setattr("coordinator.members.quarantine.KEPT_WORDS", kept := 20)
    run.say("Ada", "Mallory", kept + 2)
    run.impose("Mallory")
    with run.database() as session:
        assert session.connection().exec_driver_sql("SELECT count(*) FROM suspicions").scalar() == kept


def test_a_member_in_quarantine_brings_no_other_device(run: Run, keys: list[bytes]) -> None:
    """Its known devices go on; a new one would only replace the one that was cut off. The code stays unused."""
    second = run.membership.join(keys[5], run.membership.invite("Mallory")[0], receipt_key="ab" * 32)
    assert run.membership.check(second.token_jwt)
    [code] = run.membership.invite("Mallory")
    run.impose("Mallory", "overheats")
    assert run.membership.renew(keys[5]).member == "Mallory"
    third = key_of("Mallory's third").public_key
    with pytest.raises(QuarantinedError, match="can bring no further device"):
        run.membership.join(third, code)
    run.lift("Mallory")
    assert run.membership.join(third, code).member == "Mallory"


def test_by_hand_it_is_imposed_once_and_lifted_once(run: Run) -> None:
    """Again changes nothing, what is not in quarantine cannot be lifted, and a revoked device is out for good."""
    device = run.impose("Ada", "lost")
    assert run.impose("Ada") == device
    assert run.listed.serial == 1
    assert quarantines(run.database)[0].reason == "lost"
    with pytest.raises(ConfigError, match="Bob has no such device in quarantine"):
        run.lift("Bob")
    with pytest.raises(ConfigError, match="No member is called"):
        run.lift("Nobody")
    run.membership.revoke_device("Ada", device)
    assert run.quarantined == []
    with pytest.raises(ConfigError, match="no such device in quarantine"):
        run.lift("Ada", device[:8])
    with pytest.raises(ConfigError, match="revoked already"):
        run.impose("Ada")
    with pytest.raises(RevokedError, match="removed from this run"):
        run.membership.join(run.keys["Ada"])
    assert run.listed.peer_ids == {run.peer_ids["Ada"]}


def test_an_erased_members_name_is_in_no_word(run: Run) -> None:
    """What was said of or by the member stays under the pseudonym."""
    run.peer_ids["nobody"] = "QmNobody"
    with pytest.raises(RequestError, match="No device here"):
        run.say("Ada", "nobody")
    claim = SuspicionReport(run.peer_ids["Mallory"], "step", 1, "copies Ada")
    hear(run.database, run.policy, claim, run.devices["Ada"], run.clock.now)
    run.impose("Mallory")
    erase(run.database, run.membership, "Ada")
    [word] = quarantines(run.database)[0].words
    assert (word.witness[:7], word.detail[:14]) == ("erased-", "copies erased-")


def impose(coordinator: TestCoordinator, name: str, reason: str) -> None:
    services = coordinator.services
    [device] = device_rows(services.database, name)
    quarantine_device(services.database, name, device.device_id, reason, "os:grace", services.clock())


@pytest.mark.thorough
async def test_a_session_ends_with_the_reason_and_opens_again_when_lifted(tmp_path: Path) -> None:
    """The device learns why, by an error of its own; everybody gets the list; after the lifting it is welcome."""
    async with (
        serving(tmp_path) as coordinator,
        joined(coordinator, tmp_path) as ada,
        joined(coordinator, tmp_path, "Bob") as bob,
    ):
        ada.start()
        bob.start()
        await eventually(
            "both members have heard where they stand", lambda: bool(ada.heard.standings and bob.heard.standings)
        )
        impose(coordinator, "Bob", "sends garbage")
        assert bob.running is not None
        with pytest.raises(QuarantinedError, match=r"in quarantine \(sends garbage\): ask the run's operator"):
            await bob.running
        assert bob.heard.events[-1] == CutOff(str(bob.running.exception()))
        with pytest.raises(QuarantinedError, match="sends garbage"):
            await bob.client.renew(bob.credentials.device_key)
        device = bob.credentials.device_key.peer_id
        await eventually("Ada knows of the quarantine", lambda: ada.credentials.is_revoked(device))
        services = coordinator.services
        release(services.database, "Bob", "", "os:grace", services.clock())
        await eventually("Ada knows that it is over", lambda: not ada.credentials.is_revoked(device))
        bob.heard.events.clear()
        bob.start()
        await eventually("Bob has heard where he stands", lambda: bool(bob.heard.standings))


def test_a_revocation_beside_a_quarantine_is_for_good(run: Run) -> None:
    """Made at the same moment, the one does not hide the other: there is nothing that lifting could take back."""
    with ThreadPoolExecutor(1) as pool:
        with run.database.begin() as session:
            device = session.get_one(Device, run.devices["Mallory"])
            put_in_quarantine(session, device, "", "os:grace", run.clock.now)
            revoking = pool.submit(run.membership.revoke, "Mallory")
            let_others_wait(session)
        assert revoking.result() == 1
    with pytest.raises(ConfigError, match="no such device"):
        run.lift("Mallory")
    assert run.peer_ids["Mallory"] in run.listed.peer_ids


def test_two_who_are_judged_at_once_do_not_both_take_the_last_place(run: Run) -> None:
    """Members' words may cut off one of four, wherever they are heard."""
    run.say("Ada", of="Mallory", times=3)
    run.say("Ada", of="Carol", times=3)
    run.say("Bob", of="Mallory", times=2)
    run.say("Bob", of="Carol", times=2)
    with ThreadPoolExecutor(2) as pool:
        with run.database.begin() as session:
            one_at_a_time(session, Lock.REVOCATIONS)
            words = [pool.submit(run.say, "Bob", name) for name in ("Mallory", "Carol")]
            let_others_wait(session, 2)
        for word in words:
            word.result()
    assert len(run.quarantined) == 1
