"""Administrative actions on members and the live run, as used by commands and web pages.

Refused actions raise `ConfigError`; the audit log records them, except for `steer` and `erase`.
Commands for the operator only (keys, administrators, evaluators, backups) write their own entries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coordinator.ledger.steering import Steersman
from coordinator.members.audit import AuditLog
from coordinator.members.credits import set_named
from coordinator.members.devices import device_act
from coordinator.members.erasure import erase
from coordinator.members.membership import Membership
from coordinator.members.names import hide_name, set_display_name
from coordinator.members.quarantine import quarantine_device, release
from coordinator.store.engine import Database
from peer.config.run import RunConfig


@dataclass(frozen=True)
class Administration:
    """The actions available to one operator or administrator of a run."""

    database: Database
    membership: Membership
    actor: str
    clock: Callable[[], float]

    @property
    def audit(self) -> AuditLog:
        """An audit log that records this person as the actor."""
        return AuditLog(self.database, self.actor, self.clock)

    def invite(self, name: str, role: str, days: float, devices: int = 1) -> list[str]:
        """Invite a new or existing member; return one code per device."""
        with self.audit.act("invite", name, f"{role}, {devices} code(s), {days:g} days"):
            return self.membership.invite(name, role, days, devices)

    def allow(self, entry: str, role: str, name: str) -> None:
        """Add an account or an organisation to the allowlist."""
        with self.audit.act("allow", entry, role):
            self.membership.allow(entry, role, name)

    def disallow(self, entry: str) -> None:
        """Remove an entry from the allowlist."""
        with self.audit.act("disallow", entry):
            self.membership.disallow(entry)

    def revoke(self, name: str, reason: str) -> int:
        """Revoke a member; return the number of newly revoked devices."""
        with self.audit.act("revoke", name, reason):
            return self.membership.revoke(name, reason)

    def revoke_device(self, name: str, device_id: str, reason: str) -> str:
        """Revoke one of a member's devices; return its full id."""
        with self.audit.act("revoke-device", name, device_act(device_id, reason)):
            return self.membership.revoke_device(name, device_id, reason)

    def quarantine(self, name: str, device_id: str, reason: str) -> str:
        """Quarantine one of a member's devices; return its full id."""
        with self.audit.act("quarantine", name, device_act(device_id, reason)):
            return quarantine_device(self.database, name, device_id, reason, self.actor, self.clock())

    def lift(self, name: str, device_id: str = "") -> list[str]:
        """Lift quarantine from one of a member's devices ("": from all); return the full ids."""
        with self.audit.act("lift-quarantine", name, device_act(device_id, "")):
            return release(self.database, name, device_id, self.actor, self.clock())

    def steer(self, config: RunConfig, act: Callable[[Steersman], str]) -> str:
        """Apply a steering command to the live run; return a description of its effect."""
        done = act(Steersman(self.database, config, self.actor, self.clock))
        self.audit.record("steer", "", done)
        return done

    def show_as(self, name: str, display_name: str) -> str:
        """Set a member's public name ("" restores the original name); return the public name."""
        with self.audit.act("display-name", name, display_name):
            set_display_name(self.database, name, display_name)
        return display_name or name

    def hide_name(self, name: str, hidden: bool) -> str:
        """Hide a member's public name behind a number, or show it again; return the public name."""
        with self.audit.act("hide-name" if hidden else "show-name", name):
            return hide_name(self.database, name, hidden, self.clock())

    def credit(self, name: str, named: bool) -> None:
        """Set whether the model card names a member."""
        with self.audit.act("credits-name" if named else "credits-omit", name):
            set_named(self.database, name, named)

    def erase(self, name: str) -> str:
        """Erase a member; return the pseudonym. Failures are not recorded: they contain the name."""
        pseudonym = erase(self.database, self.membership, name)
        self.audit.record("erase", pseudonym)
        return pseudonym
