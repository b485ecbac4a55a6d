"""The error tree of manyhands: one class for each thing a person can be told to mend.

Every class carries a stable `code` (sent over gRPC and HTTP) and a process `exit_code` (a contract: scripts use it).
`auth` is the lowest package, so the root lives here; each package adds its own leaves to this tree:

    ManyhandsError                  1
    ├── ConfigError                 3   run.yaml or settings are wrong
    ├── UnreachableError            4   the coordinator, or a web server, does not answer
    ├── LinkError                   5   the join link is malformed
    ├── FingerprintError            6   the coordinator is not the one the link names
    ├── NotInvitedError             7   no invite was given and the device is unknown
    ├── UnknownInviteError          8   no such invite code
    ├── UsedInviteError             9   the code was used already
    ├── ExpiredInviteError         10   the code is too old
    ├── RevokedError               11   the member or device was revoked
    │   └── QuarantinedError       27   ... for as long as its quarantine lasts
    ├── VersionError               12   peer and coordinator speak different versions
    ├── PortTakenError             13   a port to listen on is taken
    ├── StorageError               14   disk full, or a file cannot be written or verified
    │   └── DatabaseError          31   ... the run's database, which is missing, empty or damaged
    ├── ClockError                 15   the two clocks differ too much
    ├── SwarmError                 16   the swarm cannot be reached or its daemon does not start
    ├── TokenError                 17   an access token is invalid
    │   └── ExpiredTokenError      17   ... because its time is over
    ├── WorkerError                18   the training process failed again and again
    ├── RequestError               19   a request breaks the protocol (schema, size, range)
    ├── UnfitError                 20   the doctor found what keeps this machine from taking part
    ├── MemoryLimitError           21   not even one sample fits into the device's memory
    ├── LoginDeniedError           22   the person refused the login at the identity provider
    ├── LoginExpiredError          23   nobody completed the login in time
    ├── NotAllowedError            24   who logged in is not on the run's allowlist
    ├── ProviderError              25   the identity provider does not answer, or not as it should
    │   └── IdTokenError           25   ... because its ID token proves nothing to this coordinator
    ├── DeviceLimitError           26   the member has as many devices in the run as it may
    ├── UnverifiedError            28   what was published does not follow from what was signed
    ├── UnsoundWeightsError        29   exported weights do not compute what the checkpoint says of them
    ├── PublicationError           30   a place to publish to does not take a checkpoint
    └── UnconfirmedError           32   an act has consequences that a person must confirm first
        └── ShrunkenRunError       33   ... a run holds far less than its last backup, or than its checkpoints imply
"""

from __future__ import annotations

from typing import ClassVar


class ManyhandsError(Exception):
    """Something went wrong that a person can act on; `str(error)` is one sentence with the remedy."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1


class ConfigError(ManyhandsError):
    """A run file or a setting is wrong: the message names the key, the value and what is allowed."""

    code = "config"
    exit_code = 3


class UnreachableError(ManyhandsError):
    """The coordinator does not answer at the link's address, or a web server that is needed does not."""

    code = "unreachable"
    exit_code = 4


class LinkError(ManyhandsError):
    """A join link cannot be parsed."""

    code = "bad-link"
    exit_code = 5


class FingerprintError(ManyhandsError):
    """The server's certificate is not the one that the join link names."""

    code = "wrong-fingerprint"
    exit_code = 6


class NotInvitedError(ManyhandsError):
    """The device is unknown and no invite code came with it."""

    code = "not-invited"
    exit_code = 7


class UnknownInviteError(ManyhandsError):
    """No invite has this code."""

    code = "unknown-invite"
    exit_code = 8


class UsedInviteError(ManyhandsError):
    """The invite code was used already."""

    code = "used-invite"
    exit_code = 9


class ExpiredInviteError(ManyhandsError):
    """The invite code's time is over."""

    code = "expired-invite"
    exit_code = 10


class RevokedError(ManyhandsError):
    """The member or the device was revoked by the operator."""

    code = "revoked"
    exit_code = 11


class QuarantinedError(RevokedError):
    """The device was cut off until the operator lifts it: its contributions failed the checks too often."""

    code = "quarantined"
    exit_code = 27


class VersionError(ManyhandsError):
    """Peer and coordinator speak different versions of the protocol."""

    code = "wrong-version"
    exit_code = 12


class PortTakenError(ManyhandsError):
    """A port that the coordinator should listen on is taken."""

    code = "port-taken"
    exit_code = 13


class StorageError(ManyhandsError):
    """A file cannot be written, read or verified (disk full, permissions, wrong digest)."""

    code = "storage"
    exit_code = 14


class DatabaseError(StorageError):
    """A run's database is missing, empty or damaged, so that the run must be restored."""

    code = "database"
    exit_code = 31


class ClockError(ManyhandsError):
    """This machine's clock and the coordinator's differ by more than the tokens allow."""

    code = "clock-skew"
    exit_code = 15


class SwarmError(ManyhandsError):
    """The swarm cannot be reached, or the p2p daemon does not start."""

    code = "swarm"
    exit_code = 16


class TokenError(ManyhandsError):
    """An access token is malformed, forged, or of another run or key."""

    code = "bad-token"
    exit_code = 17


class ExpiredTokenError(TokenError):
    """An access token's time is over."""

    code = "expired-token"


class WorkerError(ManyhandsError):
    """The training process failed again and again."""

    code = "worker"
    exit_code = 18


class RequestError(ManyhandsError):
    """A request breaks the protocol: its schema, its size or its range."""

    code = "bad-request"
    exit_code = 19


class UnfitError(ManyhandsError):
    """The doctor found something that keeps this machine from taking part."""

    code = "unfit"
    exit_code = 20


class MemoryLimitError(ManyhandsError):
    """Not even one sample fits into the device's memory."""

    code = "too-little-memory"
    exit_code = 21


class LoginDeniedError(ManyhandsError):
    """The person refused the login at the identity provider."""

    code = "login-denied"
    exit_code = 22


class LoginExpiredError(ManyhandsError):
    """Nobody completed the login in time."""

    code = "login-expired"
    exit_code = 23


class NotAllowedError(ManyhandsError):
    """Somebody logged in who is not on the run's allowlist: the message names the account."""

    code = "not-allowed"
    exit_code = 24


class ProviderError(ManyhandsError):
    """An identity provider does not answer, or not as it should."""

    code = "provider"
    exit_code = 25


class IdTokenError(ProviderError):
    """An ID token is malformed, forged, out of date, used before, or meant for somebody else."""

    code = "bad-id-token"


class DeviceLimitError(ManyhandsError):
    """The member has as many devices in the run as it may have at once."""

    code = "too-many-devices"
    exit_code = 26


class UnverifiedError(ManyhandsError):
    """A published leaderboard does not follow from the receipts that were published with it."""

    code = "unverified"
    exit_code = 28


class UnsoundWeightsError(ManyhandsError):
    """Exported weights, loaded by plain transformers, do not give the loss that the checkpoint's manifest names."""

    code = "unsound-weights"
    exit_code = 29


class PublicationError(ManyhandsError):
    """A hub or storage does not take what is to be published: it is away, or refuses the credentials."""

    code = "publication"
    exit_code = 30


class UnconfirmedError(ManyhandsError):
    """An act is allowed and has consequences that nobody may want by mistake; nothing is done until it is confirmed."""

    code = "unconfirmed"
    exit_code = 32

    def __init__(self, consequences: str) -> None:
        super().__init__(f"{consequences} Nothing is done yet: add --yes to do it.")
        self.consequences = consequences  # in whole sentences, for forms that confirm in another way


class ShrunkenRunError(UnconfirmedError):
    """A run that is to be backed up holds far less than its last backup, or than its checkpoints imply."""

    code = "shrunken-run"
    exit_code = 33
