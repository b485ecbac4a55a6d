"""What others show of the run: charts to embed in their pages, and the picture beside a link.

`/embed/loss` is a page of its own that needs no script: the curve that the server draws, which asks for a newer one now
and then. It alone may be framed, by the sites that `embed_on` in settings.yaml names.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from coordinator.card import CardFacts, draw_card
from coordinator.web.embedding import embed_page
from coordinator.web.live import LiveSnapshot
from coordinator.web.snapshot import Snapshot

CARD_S = 300.0  # so old may a card be: it takes a third of a second of a processor
router = APIRouter(include_in_schema=False)


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


def card_facts(run: str, snapshot: Snapshot) -> CardFacts:
    """What the card tells of a snapshot."""
    return CardFacts(
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


@router.get("/embed/loss")
async def embedded_loss(
    request: Request, theme: Annotated[Literal["auto", "light", "dark"], Query()] = "auto"
) -> Response:
    """The loss curve for a frame in somebody else's page; `theme` where that is not the reader's own."""
    live: LiveSnapshot = request.app.state.live
    content = embed_page(request.app.state.config.run.name, live.current, request.app.state.web_address, theme)
    return Response(content, media_type="text/html", headers={"Cache-Control": "no-cache"})
