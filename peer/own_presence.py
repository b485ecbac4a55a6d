"""What this peer tells the coordinator of itself between reports: where it stands, and what it is doing."""

from __future__ import annotations

from typing import Literal

from peer.messages import Progress, Ready, WorkerEvent
from peer.protocol import control_pb2


class OwnPresence:
    """One stay's; the session sends `now` every few seconds."""

    def __init__(self, role: Literal["trainer", "auxiliary"]) -> None:
        self.now = control_pb2.Presence(state="starting")
        self.relays: tuple[str, ...] = ()  # where this peer relays for others while it is in the swarm
        self._device = ""  # what computes, as the worker has found it
        self._doing = "assisting" if role == "auxiliary" else "training"

    def starting(self) -> None:
        """A worker starts, or starts again."""
        self.now = control_pb2.Presence(step=self.now.step, state="starting")

    def paused(self) -> None:
        """A limit forbids training for now."""
        self.now = control_pb2.Presence(step=self.now.step, state="paused")

    def stopping(self) -> None:
        """The last worker leaves the swarm."""
        self.now = control_pb2.Presence(step=self.now.step, state="stopping")

    def hear(self, event: WorkerEvent) -> None:
        """Follow a worker that runs and is to go on."""
        match event:
            case Ready():
                self._device = event.device
                self.now = control_pb2.Presence(
                    step=event.step, state=self._doing, relay_addresses=self.relays, device=event.device
                )
            case Progress():
                self.now = control_pb2.Presence(
                    step=event.step,
                    own_samples=event.own_samples,
                    samples_per_second=event.samples_per_second,
                    state=self._doing,
                    relay_addresses=self.relays,
                    device=self._device,
                    apart=event.apart,
                )
