"""Replacing the authority's key: whole or not at all, and a running coordinator and its members go on."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path

import pytest

from auth.errors import ConfigError, ExpiredTokenError, ManyhandsError, StorageError
from auth.keys import AuthorityKey
from auth.tokens import Authorities
from coordinator.context.open_run import open_run
from coordinator.run.authority_key import handover_to, load_authority, rotate
from coordinator.service import doctor
from tests.support.control_plane import TestCoordinator, connected, join_as, joined, serving
from tests.support.operator_commands import call
from tests.support.small_run import make_small_run
from tests.support.waiting import eventually

NOW = 1_800_000_000.0
LIFE_S = 3600.0


class KilledError(Exception):
    """The power is gone."""


@pytest.fixture
def keys_dir(tmp_path: Path) -> Path:
    """The keys of a new run."""
    AuthorityKey.generate().save(tmp_path / "authority.key")
    return tmp_path


def test_a_rotated_key_is_named_by_the_old_one(keys_dir: Path) -> None:
    """It is another, carries the handover, counts from now on, and lies in files of its owner alone."""
    old = load_authority(keys_dir / "authority.key")
    assert handover_to(old, "demo") is None
    handover = rotate(keys_dir, "demo", NOW + LIFE_S, NOW)
    new = load_authority(keys_dir / "authority.key")
    assert handover_to(new, "demo") == handover
    assert (handover.old_key, handover.new_key) == (old.public_bytes, new.public_bytes)
    assert handover.until > NOW + LIFE_S
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys_dir.iterdir()} == {0o600}


def test_one_rotation_at_a_time(keys_dir: Path) -> None:
    """While the key before still counts there is no third; afterwards there may be."""
    first = rotate(keys_dir, "demo", NOW + LIFE_S, NOW)
    with pytest.raises(ConfigError, match=r"replaced 0\.5 hours ago.*wait until then"):
        rotate(keys_dir, "demo", NOW + 2 * LIFE_S, NOW + LIFE_S / 2)
    second = rotate(keys_dir, "demo", NOW + 9 * LIFE_S, first.until)
    assert second.old_key == first.new_key


@pytest.mark.parametrize("written", ["nothing", "the statement"])
def test_who_is_killed_leaves_the_old_key(keys_dir: Path, monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    """At any instant before the key's file takes its name the run is as before, and can try again."""
    old = load_authority(keys_dir / "authority.key")

    def die(*_args: object) -> AuthorityKey:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(AuthorityKey, "save" if written == "the statement" else "generate", die)
        with pytest.raises(KilledError):
            rotate(keys_dir, "demo", NOW + LIFE_S, NOW)
    assert len(list(keys_dir.glob("handover-*"))) == (written == "the statement")
    left = load_authority(keys_dir / "authority.key")
    assert (left.public_bytes, left.handover) == (old.public_bytes, "")
    assert rotate(keys_dir, "demo", NOW + LIFE_S, NOW).old_key == old.public_bytes


def test_the_command_rotates_and_the_doctor_tells(tmp_path: Path) -> None:
    """The link stays, the act is on record, a second time is refused, and a statement that is none is found."""
    run = make_small_run(tmp_path)
    link, fresh = run.join_link, doctor.check_keys(run, time.time())
    assert "replaced" not in fresh.found
    told = json.loads(call("rotate-key", run.path, "--json").output)
    assert told["old_key_counts_until"] > time.time() + run.config.membership.token_lifetime_s
    assert run.join_link == link
    assert told["new_key"] == run.authority.public_bytes.hex()
    assert "the old one counts for 6.0 hours more" in doctor.check_keys(run, time.time()).found
    with pytest.raises(ConfigError, match="wait until then"):
        call("rotate-key", run.path)
    with open_run(run.path) as opened:
        assert opened.membership.authority_public.hex() == told["new_key"]
    acts = json.loads(call("audit", run.path, "--json").output)
    assert [act["act"] for act in acts] == ["rotate-key", "rotate-key"]
    [statement] = run.keys_dir.glob("handover-*")
    statement.write_bytes(b"\xff")
    run.authority.save(run.keys_dir / "authority.key")
    with pytest.raises(ManyhandsError):
        doctor.check_keys(run, time.time())


def rotate_run(coordinator: TestCoordinator) -> float:
    """As the command does; returns when the old key is over."""
    now = coordinator.clock()
    return rotate(coordinator.directory.keys_dir, "test", now + LIFE_S, now).until


async def test_members_go_on_while_the_key_is_replaced(tmp_path: Path) -> None:
    """Who is connected follows at once, who is not believes the new token, and all get in again by their devices."""
    async with (
        serving(tmp_path) as coordinator,
        joined(coordinator, tmp_path) as ada,
        connected(coordinator) as client,
    ):
        away = await join_as(coordinator, client, tmp_path / "away", "Bob")
        ada.start()
        old_key, old_jwt = coordinator.services.authority_public, ada.credentials.token_jwt
        until = rotate_run(coordinator)
        new_key = coordinator.services.authority_public
        public_file = ada.credentials.directory / "authority.pub"
        await eventually(
            "the public file names the old key as the previous one",
            lambda: Authorities.from_bytes(public_file.read_bytes()).previous == old_key,
        )
        assert Authorities.from_bytes(public_file.read_bytes()).current == new_key
        joiner = await join_as(coordinator, client, tmp_path / "new", "Carol")
        now = time.time()
        for knows in (ada.credentials, away, joiner):
            for shows in (old_jwt, away.token_jwt, joiner.token_jwt):
                assert knows.check(shows, now)
        assert coordinator.services.membership.check(old_jwt).member == "Ada"
        coordinator.clock.ahead_s = until - time.time() + 1
        with pytest.raises(ExpiredTokenError):
            coordinator.services.membership.check(old_jwt)
        away.store_token(await client.renew(away.device_key))
        assert coordinator.services.membership.check(away.token_jwt).member == "Bob"


def test_a_missing_key_says_so(tmp_path: Path) -> None:
    """One sentence that names the file."""
    run = make_small_run(tmp_path)
    (run.keys_dir / "authority.key").unlink()
    with pytest.raises(StorageError, match=r"Cannot read the key .*authority\.key"):
        run.authority  # noqa: B018
