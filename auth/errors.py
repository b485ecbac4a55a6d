"""The exception hierarchy of manyhands: one class per problem that a user can solve.

Every class has a `code`, sent over gRPC and HTTP, and a process `exit_code`. Both are stable,
because scripts depend on them. A class's docstring states the problem and, in a second paragraph,
the remedy; the guide's list of exit codes is generated from them. Other packages add subclasses:

    ManyhandsError                  1
    ├── ConfigError                 3   invalid run.yaml or settings
    ├── UnreachableError            4   no answer from the coordinator or a web server
    ├── LinkError                   5   malformed join link
    ├── FingerprintError            6   coordinator's certificate differs from the join link
    ├── NotInvitedError             7   unknown device without an invite code
    ├── UnknownInviteError          8   no such invite code
    ├── UsedInviteError             9   invite code already used
    ├── ExpiredInviteError         10   invite code expired
    ├── RevokedError               11   member or device revoked
    │   └── QuarantinedError       27   ... temporarily, by a quarantine
    ├── VersionError               12   incompatible protocol versions of peer and coordinator
    ├── PortTakenError             13   listening port already in use
    ├── StorageError               14   disk full, or file not writable or not verifiable
    │   └── DatabaseError          31   ... the run's database is missing, empty or damaged
    ├── ClockError                 15   clocks of peer and coordinator differ too much
    ├── SwarmError                 16   swarm unreachable, or its daemon does not start
    ├── TokenError                 17   invalid access token
    │   └── ExpiredTokenError      17   ... because it has expired
    ├── WorkerError                18   training process failed repeatedly
    ├── RequestError               19   request violates the protocol (schema, size, range)
    ├── UnfitError                 20   the doctor found a problem that prevents taking part
    ├── MemoryLimitError           21   not even one sample fits into the device's memory
    ├── LoginDeniedError           22   user refused the login at the identity provider
    ├── LoginExpiredError          23   login not completed in time
    ├── NotAllowedError            24   account not on the run's allowlist
    ├── ProviderError              25   identity provider unreachable, or its response invalid
    │   └── IdTokenError           25   ... because its ID token is invalid
    ├── DeviceLimitError           26   member has reached the run's limit of devices
    ├── UnverifiedError            28   published results do not match the signed data
    ├── UnsoundWeightsError        29   exported weights do not reproduce the checkpoint's loss
    ├── PublicationError           30   a publishing target rejects a checkpoint
    └── UnconfirmedError           32   operation with consequences needs confirmation
        └── ShrunkenRunError       33   ... run much smaller than its last backup or its checkpoints imply
"""

from __future__ import annotations

from typing import ClassVar


class ManyhandsError(Exception):
    """An error that a user can fix; `str(error)` is one sentence that includes the remedy."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1


class ConfigError(ManyhandsError):
    """A run file or a setting is invalid.

    Correct the key that the message names.
    """

    code = "config"
    exit_code = 3


class UnreachableError(ManyhandsError):
    """The coordinator, or a web server that the command needs, does not respond.

    Check your connection; ask whether the coordinator is running. A device that has already joined keeps retrying.
    """

    code = "unreachable"
    exit_code = 4


class LinkError(ManyhandsError):
    """The join link is malformed.

    Copy the whole link, and keep the quotes around it.
    """

    code = "bad-link"
    exit_code = 5


class FingerprintError(ManyhandsError):
    """The server's certificate does not match the join link.

    Ask the operator for the current link, and do not continue with this one.
    """

    code = "wrong-fingerprint"
    exit_code = 6


class NotInvitedError(ManyhandsError):
    """The device is unknown, and the request has no invite code.

    Ask the operator for an invite code.
    """

    code = "not-invited"
    exit_code = 7


class UnknownInviteError(ManyhandsError):
    """No invite has this code.

    Check its spelling.
    """

    code = "unknown-invite"
    exit_code = 8


class UsedInviteError(ManyhandsError):
    """The invite code has already been used.

    Ask for another: one code is valid for one device.
    """

    code = "used-invite"
    exit_code = 9


class ExpiredInviteError(ManyhandsError):
    """The invite code has expired.

    Ask for another.
    """

    code = "expired-invite"
    exit_code = 10


class RevokedError(ManyhandsError):
    """The operator has revoked the member, or only this device.

    Contact the operator; if the message allows it, join with another device.
    """

    code = "revoked"
    exit_code = 11


class QuarantinedError(RevokedError):
    """The keeper or several members reported failed checks, or the operator quarantined the device.

    Contact the operator; after the quarantine, run the same command again. Other devices of the member can
    continue, but new devices must wait.
    """

    code = "quarantined"
    exit_code = 27


class VersionError(ManyhandsError):
    """Peer and coordinator use different versions of the protocol.

    Update manyhands.
    """

    code = "wrong-version"
    exit_code = 12


class PortTakenError(ManyhandsError):
    """A port to listen on is already in use.

    Stop the program that uses it, or choose another port.
    """

    code = "port-taken"
    exit_code = 13


class StorageError(ManyhandsError):
    """The disk is full, or a file cannot be written, read or verified.

    Free some space, and check the permissions.
    """

    code = "storage"
    exit_code = 14


class DatabaseError(StorageError):
    """The run's database is missing, empty or damaged (operators).

    Restore the run from a backup; the message describes the fault.
    """

    code = "database"
    exit_code = 31


class ClockError(ManyhandsError):
    """This machine's clock differs from the coordinator's by more than access tokens tolerate.

    Set this machine's clock.
    """

    code = "clock-skew"
    exit_code = 15


class SwarmError(ManyhandsError):
    """The swarm cannot be reached, or the p2p daemon does not start (operators; volunteers' devices wait and retry).

    Follow the advice about ports and connections in the message.
    """

    code = "swarm"
    exit_code = 16


class TokenError(ManyhandsError):
    """An access token is malformed, forged, or issued by another run or key.

    Join again.
    """

    code = "bad-token"
    exit_code = 17


class ExpiredTokenError(TokenError):
    """An access token has expired.

    Join again.
    """

    code = "expired-token"


class WorkerError(ManyhandsError):
    """The training process failed repeatedly.

    See `worker.log`; try half the `--microbatch`.
    """

    code = "worker"
    exit_code = 18


class RequestError(ManyhandsError):
    """A request violates the protocol: its schema, its size or its range is invalid.

    Update manyhands.
    """

    code = "bad-request"
    exit_code = 19


class UnfitError(ManyhandsError):
    """The doctor found a problem that prevents this machine from taking part.

    Follow the advice in its report.
    """

    code = "unfit"
    exit_code = 20


class MemoryLimitError(ManyhandsError):
    """Not even one sample fits in the device's memory.

    Close other programs, or use another device.
    """

    code = "too-little-memory"
    exit_code = 21


class LoginDeniedError(ManyhandsError):
    """The user declined the login at the identity provider.

    Run the command again and approve it, or ask for an invite code.
    """

    code = "login-denied"
    exit_code = 22


class LoginExpiredError(ManyhandsError):
    """The login was not completed in time.

    Run the command again.
    """

    code = "login-expired"
    exit_code = 23


class NotAllowedError(ManyhandsError):
    """The account is not on the run's allowlist; the message names the account.

    Ask the operator to add it, or log in with another account.
    """

    code = "not-allowed"
    exit_code = 24


class ProviderError(ManyhandsError):
    """An identity provider does not respond, or its response is invalid.

    Try again later, and tell the operator.
    """

    code = "provider"
    exit_code = 25


class IdTokenError(ProviderError):
    """An ID token is malformed, forged, expired, already used, or issued for another audience.

    Try again later, and tell the operator.
    """

    code = "bad-id-token"


class DeviceLimitError(ManyhandsError):
    """The member already has the maximum number of devices in the run.

    Stop one and wait until its access expires, or ask the operator to revoke one that is no longer used.
    """

    code = "too-many-devices"
    exit_code = 26


class UnverifiedError(ManyhandsError):
    """A published leaderboard does not match its receipts, or a certificate has no valid signature.

    Tell the run's operator and the other members.
    """

    code = "unverified"
    exit_code = 28


class UnsoundWeightsError(ManyhandsError):
    """Exported weights, loaded by plain transformers, do not reproduce the loss in the checkpoint's manifest
    (operators).

    Nothing is published. Export an older checkpoint, and compare the versions of torch and transformers.
    """

    code = "unsound-weights"
    exit_code = 29


class PublicationError(ManyhandsError):
    """A hub or a storage service rejected a publication (operators).

    The message gives destination and reason; check the token, the permissions and the network.
    """

    code = "publication"
    exit_code = 30


class UnconfirmedError(ManyhandsError):
    """A command has potentially unwanted consequences; it does nothing until confirmed (operators).

    The message lists the consequences; add `--yes` to proceed.
    """

    code = "unconfirmed"
    exit_code = 32

    def __init__(self, consequences: str) -> None:
        super().__init__(f"{consequences} Nothing is done yet: add --yes to do it.")
        self.consequences = consequences  # complete sentences, for web forms with their own confirmation


class ShrunkenRunError(UnconfirmedError):
    """The run to back up is smaller than its last backup or its checkpoints imply (operators).

    No backup was made. Check that the database is the right one and that the disk with the
    checkpoints is mounted; `--yes` backs up the run anyway.
    """

    code = "shrunken-run"
    exit_code = 33
