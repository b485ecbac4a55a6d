"""Acts of administration on members and on the live run, for commands and pages alike; each is in the audit log.

An act that cannot be raises `ConfigError`, which the audit log has too. What only the machine's operator may do (keys,
administrators, evaluators, backups, publications) is not here: those commands record it themselves.
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
    """The run, for one operator or administrator."""

    database: Database
    membership: Membership
    actor: str
    clock: Callable[[], float]

    @property
    def audit(self) -> AuditLog:
        """The record of this person's acts."""
        return AuditLog(self.database, self.actor, self.clock)

    def invite(self, name: str, role: str, days: float, devices: int = 1) -> list[str]:
        """Invite a member, new or known; returns a code for each device."""
        with self.audit.act("invite", name, f"{role}, {devices} code(s), {days:g} days"):
            return self.membership.invite(name, role, days, devices)

    def allow(self, entry: str, role: str, name: str) -> None:
        """Put an account or an organisation on the allowlist."""
        with self.audit.act("allow", entry, role):
            self.membership.allow(entry, role, name)

    def disallow(self, entry: str) -> None:
        """Take an entry off the allowlist."""
        with self.audit.act("disallow", entry):
            self.membership.disallow(entry)

    def revoke(self, name: str, reason: str) -> int:
        """Shut a member out; returns how many devices that concerns."""
        with self.audit.act("revoke", name, reason):
            return self.membership.revoke(name, reason)

    def revoke_device(self, name: str, device_id: str, reason: str) -> str:
        """Shut one device of a member out; returns its whole id."""
        with self.audit.act("revoke-device", name, device_act(device_id, reason)):
            return self.membership.revoke_device(name, device_id, reason)

    def quarantine(self, name: str, device_id: str, reason: str) -> str:
        """Cut one device of a member off until that is lifted; returns its whole id."""
        with self.audit.act("quarantine", name, device_act(device_id, reason)):
            return quarantine_device(self.database, name, device_id, reason, self.actor, self.clock())

    def lift(self, name: str, device_id: str = "") -> list[str]:
        """Lift the quarantine of a member's device, or of all of them; returns their whole ids."""
        with self.audit.act("lift-quarantine", name, device_act(device_id, "")):
            return release(self.database, name, device_id, self.actor, self.clock())

    def steer(self, config: RunConfig, act: Callable[[Steersman], str]) -> str:
        """Steer the live run; returns what follows, for people."""
        done = act(Steersman(self.database, config, self.actor, self.clock))
        self.audit.record("steer", "", done)
        return done

    def show_as(self, name: str, display_name: str) -> str:
        """Show a member to the public under another name, an empty one meaning the member's own; returns the name."""
        with self.audit.act("display-name", name, display_name):
            set_display_name(self.database, name, display_name)
        return display_name or name

    def hide_name(self, name: str, hidden: bool) -> str:
        """Show a number to the public instead of a member's name, or end that; returns what it sees."""
        with self.audit.act("hide-name" if hidden else "show-name", name):
            return hide_name(self.database, name, hidden, self.clock())

    def credit(self, name: str, named: bool) -> None:
        """Let the model card name a member, or not."""
        with self.audit.act("credits-name" if named else "credits-omit", name):
            set_named(self.database, name, named)

    def erase(self, name: str) -> str:
        """Forget a member; returns the pseudonym. No refusal is recorded: it would keep the name."""
        pseudonym = erase(self.database, self.membership, name)
        self.audit.record("erase", pseudonym)
        return pseudonym
