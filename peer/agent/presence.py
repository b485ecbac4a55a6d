"""This peer's presence, sent to the coordinator between reports, and the relays it offers and uses.

A peer offers to relay if it is directly reachable and has no traffic limit. It uses only relays
that accept connections, because libp2p waits minutes for unreachable ones.
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
    """This peer's current state, step and speed; the session sends `now` every few seconds."""

    def __init__(self, role: Literal["trainer", "auxiliary"]) -> None:
        self.now = control_pb2.Presence(state="starting")
        self.relays: tuple[str, ...] = ()  # addresses at which this peer relays other peers' connections
        self._device = ""  # compute device reported by the worker
        self._doing = "assisting" if role == "auxiliary" else "training"

    def starting(self) -> None:
        """Set the state to "starting" when a worker starts or restarts."""
        self.now = control_pb2.Presence(step=self.now.step, state="starting")

    def paused(self) -> None:
        """Set the state to "paused" because of a limit; `hear` handles a pause by the operator."""
        self.now = control_pb2.Presence(step=self.now.step, state="paused")

    def stopping(self) -> None:
        """Set the state to "stopping" when the last worker leaves the swarm."""
        self.now = control_pb2.Presence(step=self.now.step, state="stopping")

    def hear(self, event: WorkerEvent) -> None:
        """Update the presence from a worker's `Ready` or `Progress`; ignore other events."""
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
    """Return the addresses at which this peer relays; () if it is unreachable or limits traffic."""
    limited = (limits.upload_rate, limits.download_rate, limits.upload_bytes, limits.download_bytes)
    if place.reach != "direct" or any(limit is not None for limit in limited):
        return ()
    return tuple(f"{maddr}/p2p/{peer_id}" for maddr in place.announce_maddrs or ())


async def answering_relays(relays: Sequence[str]) -> tuple[str, ...]:
    """Return the valid relay addresses that currently accept a connection."""
    return await answering([relay for relay in relays[:MAX_RELAYS] if is_peer_address(relay)])
