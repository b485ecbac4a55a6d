"""What an administrator may see and do over the web; each act is in the audit log. Pages and JSON API share it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import select

from auth.errors import ConfigError
from coordinator.audit import AuditLog, AuditRow, audit_log
from coordinator.devices import DeviceRow, device_act, device_rows
from coordinator.display_names import display_names, set_display_name
from coordinator.erasure import erase
from coordinator.membership import MemberRow, Membership
from coordinator.quarantine import QuarantineRow, quarantine_device, quarantines, release
from coordinator.store.engine import Sessions
from coordinator.store.models import Refusal

SHOWN = 200  # rows of a list


@dataclass(frozen=True)
class RefusalRow:
    """What was refused, and why."""

    at: float
    kind: str
    code: str
    reason: str


@dataclass(frozen=True)
class Administration:
    """The run, for one administrator."""

    sessions: Sessions
    membership: Membership
    actor: str
    clock: Callable[[], float]

    @property
    def _audit(self) -> AuditLog:
        return AuditLog(self.sessions, self.actor, self.clock)

    def invite(self, name: str, role: str, days: float) -> str:
        """A new code for one device."""
        with self._audit.act("invite", name, f"{role}, 1 code(s), {days:g} days"):
            return self.membership.invite(name, role=role, days=days)[0]

    def revoke(self, name: str, reason: str) -> int:
        """Shut a member out; returns how many devices that concerns."""
        with self._audit.act("revoke", name, reason):
            return self.membership.revoke(name, reason)

    def revoke_device(self, name: str, device_id: str, reason: str) -> str:
        """Shut one device of a member out; returns its whole id."""
        with self._audit.act("revoke-device", name, device_act(device_id, reason)):
            return self.membership.revoke_device(name, device_id, reason)

    def quarantine(self, name: str, device_id: str, reason: str) -> str:
        """Cut one device of a member off until that is lifted; returns its whole id."""
        with self._audit.act("quarantine", name, device_act(device_id, reason)):
            return quarantine_device(self.sessions, name, device_id, reason, self.actor, self.clock())

    def lift(self, name: str, device_id: str = "") -> list[str]:
        """Lift the quarantine of a member's device, or of all of them; returns their whole ids."""
        with self._audit.act("lift-quarantine", name, device_act(device_id, "")):
            return release(self.sessions, name, device_id, self.actor, self.clock())

    def quarantines(self) -> list[QuarantineRow]:
        """Which devices are in quarantine, and by whose words."""
        return quarantines(self.sessions)

    def show_as(self, name: str, display_name: str) -> None:
        """Show a member to the public under another name."""
        with self._audit.act("display-name", name, display_name):
            set_display_name(self.sessions, name, display_name)

    def erase(self, name: str, confirmation: str) -> str:
        """Forget a member, whose name must be given twice; returns the pseudonym."""
        if name != confirmation:
            raise ConfigError("To erase a member, type the very same name again.")
        pseudonym = erase(self.sessions, self.membership, name)
        self._audit.record("erase", pseudonym)
        return pseudonym

    def members(self) -> list[tuple[MemberRow, str]]:
        """All members, each with the name that the public sees."""
        shown = display_names(self.sessions)
        return [(row, shown.get(row.name, row.name)) for row in self.membership.members()]

    def devices(self, member: str = "") -> list[DeviceRow]:
        """The newest devices, of one member or of all."""
        return device_rows(self.sessions, member, SHOWN)

    def refusals(self) -> list[RefusalRow]:
        """The newest refusals."""
        with self.sessions() as session:
            rows = session.scalars(select(Refusal).order_by(Refusal.id.desc()).limit(SHOWN))
            return [RefusalRow(row.at, row.kind, row.code, row.reason) for row in rows]

    def audit(self) -> list[AuditRow]:
        """The newest acts."""
        return audit_log(self.sessions, SHOWN)
