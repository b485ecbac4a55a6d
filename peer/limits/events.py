"""Events about the volunteer's limits, shown as a line of text and as panel updates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class GuestEvent(ABC):
    """The base class of events about the limits, for all displays."""

    @property
    @abstractmethod
    def line(self) -> str | None:
        """The line for plain output, or None if the event only changes the panel."""

    @abstractmethod
    def on_panel(self) -> dict[str, Any]:
        """Return the fields of `peer.agent.terminal.PanelState` to update, with their new values."""


@dataclass(frozen=True)
class Paused(GuestEvent):
    """Training is paused by the volunteer's limits."""

    reason: str

    @property
    def line(self) -> str:
        return f"Paused: {self.reason}."

    def on_panel(self) -> dict[str, Any]:
        return {"activity": "paused", "notice": self.line}


@dataclass(frozen=True)
class Resumed(GuestEvent):
    """The limits allow training again; a worker will start."""

    @property
    def line(self) -> str:
        return "Going on."

    def on_panel(self) -> dict[str, Any]:
        return {"activity": "starting", "notice": self.line}


@dataclass(frozen=True)
class Leaving(GuestEvent):
    """The agent is leaving the run because of a limit."""

    reason: str

    @property
    def line(self) -> str:
        return f"Leaving: {self.reason}."

    def on_panel(self) -> dict[str, Any]:
        return {"notice": self.line}


@dataclass(frozen=True)
class Used(GuestEvent):
    """The traffic and energy used since joining; energy is None if it cannot be measured."""

    sent_bytes: int
    received_bytes: int
    processor_wh: float | None
    gpu_wh: float | None
    at_end: bool = False

    @property
    def line(self) -> str | None:
        return f"Used in this stay: {self._text}." if self.at_end else None

    def on_panel(self) -> dict[str, Any]:
        return {"used": self._text}

    @property
    def _text(self) -> str:
        parts = {"processor": self.processor_wh, "GPU": self.gpu_wh}
        known = {name: energy_wh for name, energy_wh in parts.items() if energy_wh is not None}
        energy = f"{sum(known.values()):,.1f} Wh by {' and '.join(known)}" if known else "energy not known"
        return f"{self.sent_bytes / 1e6:,.1f} MB sent, {self.received_bytes / 1e6:,.1f} MB received, {energy}"
