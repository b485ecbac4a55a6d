"""The picture of the run that chats and forums show beside a link to its page."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from fastapi import APIRouter, Request, Response

from coordinator.statistics.card import PictureFacts, draw_card
from coordinator.web.state.live import LiveSnapshot
from coordinator.web.state.snapshot import Snapshot

router = APIRouter(include_in_schema=False)

CARD_S = 300.0  # so old may a card be: it takes a third of a second of a processor


@dataclass
class CardShelf:
    """The newest card, drawn anew when it is old and something has happened; used from one event loop."""

    content: bytes = b""
    step: int = -1
    drawn_at: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def take(self, run: str, snapshot: Snapshot) -> bytes:
        """The card; of many who ask at once one waits for the drawing."""
        async with self.lock:
            facts = card_facts(run, snapshot)
            is_old = not 0 <= snapshot.taken_at - self.drawn_at < CARD_S
            if not self.content or (is_old and facts.step != self.step):
                self.content = await asyncio.to_thread(draw_card, facts)
                self.step, self.drawn_at = facts.step, snapshot.taken_at
            return self.content


def card_facts(run: str, snapshot: Snapshot) -> PictureFacts:
    """The facts of a snapshot that the card shows."""
    return PictureFacts(
        run=run,
        loss=[(float(row.step), row.loss) for row in snapshot.steps if row.loss is not None],
        step=snapshot.steps[-1].step if snapshot.steps else 0,
        samples=snapshot.samples,
        members=len(snapshot.contributions),
    )


@router.get("/card.png")
async def card(request: Request) -> Response:
    """The picture beside a link to the page."""
    shelf: CardShelf = request.app.state.card
    live: LiveSnapshot = request.app.state.live
    content = await shelf.take(request.app.state.config.run.name, live.current)
    return Response(content, media_type="image/png", headers={"Cache-Control": f"public, max-age={CARD_S:.0f}"})
