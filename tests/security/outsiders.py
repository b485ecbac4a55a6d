"""Plain hivemind peers around a swarm of members: with no token, or with one that counts for nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from auth.credentials import Credentials
from auth.tokens import RevocationList, issue_revocations
from tests.security.member_swarm import INSIDER, RUN, MemberSwarm
from tests.support.tokens import admitted
from tests.support.waiting import PATIENCE_S
from tests.support.zygote import forking_python

ROOT = Path(__file__).resolve().parents[2]
ISSUED_BEFORE_S = 3600.0
TURNED_DOWN = ["PROTOCOL_VIOLATION"]
Prepare = Callable[[MemberSwarm, Path], "Path | None"]  # makes its credentials there; returns where they are


def _token(swarm: MemberSwarm, directory: Path, lasts_s: float) -> Credentials:
    """A device of the insider's, with a token that was issued an hour ago."""
    issued_at = time.time() - ISSUED_BEFORE_S
    return admitted(directory, swarm.authority, RUN, member=INSIDER, issued_at=issued_at, lasts_s=lasts_s)


def _copied(swarm: MemberSwarm, directory: Path) -> Path:
    """An own key, and the token of an honest member."""
    _token(swarm, directory, 2 * ISSUED_BEFORE_S)
    victim = Credentials(swarm.directory_of(swarm.witness_names[-1]))
    (directory / "token.jwt").write_text(victim.token_jwt)
    return directory


def _expired(swarm: MemberSwarm, directory: Path) -> Path:
    return _token(swarm, directory, ISSUED_BEFORE_S / 2).directory


def _revoked(swarm: MemberSwarm, directory: Path) -> Path:
    """A valid token of a device that each peer knows to be revoked; the device itself knows no such list."""
    revoked = _token(swarm, directory, 2 * ISSUED_BEFORE_S).device_key.peer_id
    newer = issue_revocations(swarm.authority, RevocationList(RUN, 1, time.time(), frozenset({revoked})))
    for credentials in swarm.all_credentials:
        credentials.store_revocations(newer)
    return directory


OUTSIDERS: Mapping[str, Prepare] = {
    "no token": lambda _swarm, _directory: None,
    "a copied token": _copied,
    "an expired token": _expired,
    "a revoked token": _revoked,
}


class Outsider:
    """One that tries every door of the swarm; ended with its block."""

    def __init__(self, swarm: MemberSwarm, shows: str) -> None:
        credentials = OUTSIDERS[shows](swarm, swarm.directory / f"outsider with {shows}")
        options = [] if credentials is None else ["--credentials", str(credentials)]
        with forking_python():
            self._process = subprocess.Popen(
                [sys.executable, str(ROOT / "tests/system/outsider.py"), RUN, *swarm.addresses, *options],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )

    def __enter__(self) -> Outsider:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def doors_opened(self) -> list[str]:
        """The doors that let it in, when it has tried all."""
        stdout, stderr = self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode == 0, stderr[-2000:]
        gained = json.loads(stdout.splitlines()[-1])
        return [door for door, got in gained.items() if got and got != TURNED_DOWN]
