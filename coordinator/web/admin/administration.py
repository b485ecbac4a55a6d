"""Administration over the web: views and acts of one administrator; each act is audited."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from auth.errors import ConfigError
from coordinator.checkpoints.rewind import Contributor, checkpoint_to_return_to, contributors_since
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.steering import Steersman
from coordinator.members.audit import AuditLog, AuditRow, audit_log
from coordinator.members.devices import DeviceRow, device_act, device_rows
from coordinator.members.erasure import erase
from coordinator.members.membership import MemberRow, Membership
from coordinator.members.names import display_names, hide_name, set_display_name
from coordinator.members.quarantine import QuarantineRow, quarantine_device, quarantines, release
from coordinator.store.engine import Sessions
from coordinator.store.refusals import RefusalRow, newest_refusals
from peer.config.run import RunConfig

SHOWN = 200  # rows of a list


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

    def contributors_since(self, step: int) -> list[Contributor]:
        """Which devices' samples are in the steps after this one."""
        return contributors_since(self.sessions, step)

    def rewind(self, checkpoints_dir: Path, ledger: Ledger, step: int, suspects: Collection[str]) -> tuple[int, int]:
        """Undo all steps after this one, whose checkpoint must be there; returns how many, and the era that begins.

        Of the devices that have contributed since, `suspects` are put in quarantine. Raises `ConfigError`.
        """
        checkpoint_to_return_to(checkpoints_dir, step)
        undone = ledger.last_step() - step
        if undone < 1:
            raise ConfigError(f"There is nothing to undo: step {ledger.last_step()} is the last.")
        for row in contributors_since(self.sessions, step):
            if row.device_id in suspects:
                self.quarantine(row.member, row.device_id, f"contributed to steps after {step}, which were undone")
        with self._audit.act("rewind", str(step), f"{undone} step(s)"):
            return undone, ledger.roll_back(step)

    def steer(self, config: RunConfig, act: Callable[[Steersman], str]) -> str:
        """One act of steering; returns what follows, for people. Raises `ConfigError`."""
        done = act(Steersman(self.sessions, config, self.actor, self.clock))
        self._audit.record("steer", "", done)
        return done

    def show_as(self, name: str, display_name: str) -> None:
        """Show a member to the public under another name."""
        with self._audit.act("display-name", name, display_name):
            set_display_name(self.sessions, name, display_name)

    def hide_name(self, name: str, hidden: bool) -> str:
        """Show a number to the public instead of a member's name, or end that; returns what it sees."""
        with self._audit.act("hide-name" if hidden else "show-name", name):
            return hide_name(self.sessions, name, hidden, self.clock())

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
        return newest_refusals(self.sessions, SHOWN)

    def audit(self) -> list[AuditRow]:
        """The newest acts."""
        return audit_log(self.sessions, SHOWN)
