"""What peers have caught each other at: named in the operator's log, kept among the refusals.

A suspicion that comes over a session is a member's word against another's; the log says whose it is.
"""

from __future__ import annotations

import logging

from sqlalchemy import select

from auth.errors import RequestError
from coordinator.refusals import add_refusal
from coordinator.store.engine import Sessions
from coordinator.store.models import Device
from peer.protocol import control_pb2
from peer.suspicion import KINDS, MAX_DETAIL_CHARS

logger = logging.getLogger(__name__)


def note_suspicion(sessions: Sessions, message: control_pb2.Suspicion, witness: str, now: float) -> None:
    """Log and keep one; raises `RequestError` if it is none, or of nobody here."""
    detail = message.detail
    if message.kind not in KINDS or len(detail) > MAX_DETAIL_CHARS or not detail.isprintable():
        raise RequestError(
            f"A suspicion is of one of the kinds {', '.join(sorted(KINDS))}, "
            f"with a text of up to {MAX_DETAIL_CHARS} characters."
        )
    with sessions() as session:
        device = session.scalar(select(Device).where(Device.peer_id == message.peer_id))
        if device is None:
            raise RequestError(f"No device here is the suspected peer {message.peer_id!r:.80}.")
        device_id, member = device.id, device.member.name
    reason = f"{witness} noticed at step {message.step}: {member}'s device {detail}"
    logger.warning("suspicious: %s (device %s, peer %s)", reason, device_id, message.peer_id)
    sessions.transact(lambda session: add_refusal(session, "suspicion", message.kind, reason, device_id, now))
