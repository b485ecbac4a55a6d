"""This peer's presence: its state as told to the coordinator between reports, and the relays that it offers and uses.

A peer relays for others where it can be reached and its volunteer limits no traffic. Of the relays beside the keeper's
that it hears of, it uses those that answer: libp2p waits minutes for one that does not before it turns to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from peer.limits.limits import Limits
from peer.network.endpoints import answering, is_peer_address
from peer.network.placement import Placement
from peer.protocol import MAX_RELAYS, control_pb2
from peer.reporting.messages import Progress, Ready, WorkerEvent


class OwnPresence:
    """One stay's state, step and speed; the session sends `now` to the coordinator every few seconds."""

    def __init__(self, role: Literal["trainer", "auxiliary"]) -> None:
        self.now = control_pb2.Presence(state="starting")
        self.relays: tuple[str, ...] = ()  # where this peer relays for others while it is in the swarm
        self._device = ""  # what computes, as the worker has found it
        self._doing = "assisting" if role == "auxiliary" else "training"

    def starting(self) -> None:
        """A worker starts, or starts again."""
        self.now = control_pb2.Presence(step=self.now.step, state="starting")

    def paused(self) -> None:
        """A limit forbids training for now; a pause of the run comes with the worker's progress."""
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
                waits = "paused" if event.paused else "standby" if event.stands_by else ""
                self.now = control_pb2.Presence(
                    step=event.step,
                    own_samples=event.own_samples,
                    samples_per_second=0.0 if event.paused else event.samples_per_second,
                    state=waits or self._doing,
                    relay_addresses=self.relays,
                    device=self._device,
                    apart=event.apart,
                )


def offered_relays(place: Placement, limits: Limits, peer_id: str) -> tuple[str, ...]:
    """Return the addresses at which this peer relays: none if it cannot be reached or its traffic is limited."""
    limited = (limits.upload_rate, limits.download_rate, limits.upload_bytes, limits.download_bytes)
    if place.reach != "direct" or any(limit is not None for limit in limited):
        return ()
    return tuple(f"{maddr}/p2p/{peer_id}" for maddr in place.announce_maddrs or ())


async def answering_relays(relays: Sequence[str]) -> tuple[str, ...]:
    """Return the coordinator's relays that have the right form and whose port accepts a connection now."""
    return await answering([relay for relay in relays[:MAX_RELAYS] if is_peer_address(relay)])
