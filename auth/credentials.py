"""A device's credentials: its key, the run's authority, its token and the latest revocation list.

Several processes share one directory. The agent writes the files that it receives from the
coordinator; the worker and its forks read these to verify other peers. Each read therefore checks
whether the file has changed, and no lock is held across a fork.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from auth.errors import RevokedError, StorageError, TokenError
from auth.files import WatchedFile, make_private_directory, write_private
from auth.keys import DeviceKey
from auth.tokens import AccessToken, Authorities, RevocationList, read_token, require_usable, verify_revocations

DEVICE_KEY_FILE = "device.key"


@dataclass(frozen=True)
class JoinedRun:
    """A run that this device has joined: the name and the accepted authority keys."""

    name: str
    authorities: Authorities


class Credentials:
    """The credentials of one device for one run, stored as private files in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = Path(directory)
        make_private_directory(self.directory)
        self._run_file = WatchedFile(self.directory / "run", lambda content: content.decode())
        self._authority_file = WatchedFile(self.directory / "authority.pub", Authorities.from_bytes)
        self._token_file = WatchedFile(self.directory / "token.jwt", lambda content: content.decode())
        self._revocations_file = WatchedFile(self.directory / "revoked.jwt", self._parse_revocations)

    def __reduce__(self) -> tuple[type[Credentials], tuple[Path]]:
        """Pickle only the directory's path; the receiving process opens the directory itself."""
        return Credentials, (self.directory,)

    @cached_property
    def device_key(self) -> DeviceKey:
        """The device's key, created on first use."""
        return DeviceKey.load_or_create(self.directory / DEVICE_KEY_FILE)

    @property
    def run(self) -> str:
        """The run's name."""
        return self._joined_run().name

    @property
    def authority(self) -> bytes:
        """The public key of the run's authority (Ed25519, 32 raw bytes)."""
        return self._joined_run().authorities.current

    @property
    def token_jwt(self) -> str:
        """This device's own token as a JWT. Raises `TokenError` if the device has not joined a run."""
        token = self._token_file.read()
        if token is None:
            raise TokenError(f"{self.directory} holds no access token: join the run first.")
        return token

    def member_of(self, run: str) -> str | None:
        """Return this device's member name in `run`, or None if the device has never joined it."""
        try:
            # With `now=0.0`, signatures by a replaced authority key are still accepted.
            token = self._joined_run().authorities.read_token(self.token_jwt, run, now=0.0)
        except TokenError:
            return None
        return token.member

    def access_token(self, now: float) -> AccessToken:
        """Return this device's own token. Raises `ExpiredTokenError` if the token has expired."""
        return self.check(self.token_jwt, now)

    def check(self, jwt: str, now: float) -> AccessToken:
        """Return a token after verifying its signature, validity period and revocation status."""
        run = self._joined_run()
        token = run.authorities.read_token(jwt, run.name, now)
        require_usable(token, now)
        if self.is_revoked(token.peer_id):
            raise RevokedError(f"{token.member}'s device {token.device_id} was revoked.")
        return token

    def is_revoked(self, peer_id: str) -> bool:
        """Return whether the latest known revocation list contains this libp2p peer ID."""
        revocations = self._revocations_file.read()
        return revocations is not None and peer_id in revocations.peer_ids

    def store_grant(self, run: str, authority_public: bytes, token_jwt: str, revocations_jwt: str) -> None:
        """Store the reply to a join request, or raise `TokenError` if it is invalid."""
        self._require_own(read_token(token_jwt, authority_public, run))
        verify_revocations(revocations_jwt, authority_public, run)
        granted = JoinedRun(run, Authorities(authority_public).after(token_jwt, run))
        if not self._is_known(granted):
            self._forget_revocations()  # serial numbers of different authorities cannot be compared
        write_private(self.directory / "authority.pub", granted.authorities.to_bytes())
        write_private(self.directory / "run", run.encode())
        write_private(self.directory / "token.jwt", token_jwt.encode())
        self.store_revocations(revocations_jwt)

    def store_token(self, jwt: str) -> None:
        """Store a renewed token for this device."""
        run = self._joined_run()
        self._require_own(read_token(jwt, run.authorities.current, run.name))
        self._follow(run, jwt)
        write_private(self.directory / "token.jwt", jwt.encode())

    def store_revocations(self, jwt: str) -> None:
        """Store a revocation list if it is newer than the stored one.

        Replaying an old list therefore cannot reinstate a revoked peer. A list with the same serial
        number but another time of issue is also stored, because a new key may have signed it.
        """
        run = self._joined_run()
        new = verify_revocations(jwt, run.authorities.current, run.name)
        self._follow(run, jwt)
        try:
            known = self._revocations_file.read()
        except TokenError:  # the stored list's key is no longer accepted
            known = None
        if known is None or new.serial > known.serial or (new.serial == known.serial and new != known):
            write_private(self.directory / "revoked.jwt", jwt.encode())

    def _follow(self, run: JoinedRun, checked: str) -> None:
        """Store the authority's new key if a verified token or list contains a handover."""
        after = run.authorities.after(checked, run.name)
        if after != run.authorities:
            write_private(self.directory / "authority.pub", after.to_bytes())

    def _is_known(self, granted: JoinedRun) -> bool:
        """Return whether the stored credentials match this run and its current or previous key."""
        known = self._known_run()
        keys = (granted.authorities.current, granted.authorities.previous)
        return known is not None and known.name == granted.name and known.authorities.current in keys

    def _known_run(self) -> JoinedRun | None:
        name, authorities = self._run_file.read(), self._authority_file.read()
        return None if name is None or authorities is None else JoinedRun(name, authorities)

    def _joined_run(self) -> JoinedRun:
        run = self._known_run()
        if run is None:
            raise TokenError(f"{self.directory} belongs to no run yet: join one first.")
        return run

    def _parse_revocations(self, content: bytes) -> RevocationList:
        run = self._joined_run()
        return run.authorities.read_revocations(content.decode("ascii", errors="replace"), run.name)

    def _require_own(self, token: AccessToken) -> None:
        if token.peer_id != self.device_key.peer_id:
            raise TokenError(f"The token is for {token.peer_id}, not for this device ({self.device_key.peer_id}).")

    def _forget_revocations(self) -> None:
        try:
            self._revocations_file.path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"Cannot remove {self._revocations_file.path} ({error.strerror}).") from error
