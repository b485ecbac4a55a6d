"""Pictures of the run for other sites: the card beside a link, and the loss curve in a frame.

`/embed/loss` is a page of its own that needs no script: it shows the curve that the server draws, and reloads every
minute. It alone may be framed, by the sites that `embed_on` in settings.yaml names.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from dataclasses import dataclass, field
from html import escape
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from coordinator.statistics.card import CardFacts, draw_card
from coordinator.web.state.live import LiveSnapshot
from coordinator.web.state.snapshot import Snapshot

router = APIRouter(include_in_schema=False)

RENEWED_S = 60  # so often it asks for a newer one

STYLE = (
    ":root{color-scheme:light dark}html.light{color-scheme:light}html.dark{color-scheme:dark}"
    "body{margin:0;font:14px system-ui,sans-serif;color:CanvasText;background:Canvas}"
    "a{color:inherit;text-decoration:none;display:block;padding:8px}a:focus-visible{outline:2px solid Highlight}"
    "img{display:block;width:100%;height:auto}p{margin:0 4px 4px;display:flex;flex-wrap:wrap;gap:4px 16px}"
)

EMBED_STYLE_SHA256 = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()  # by which its policy allows it
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


def card_facts(run: str, snapshot: Snapshot) -> CardFacts:
    """The facts of a snapshot that the card shows."""
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


def embed_page(run: str, snapshot: Snapshot, address: str, theme: str, curve: str = "../curve.svg") -> str:
    """The page for a frame in another site: HTML and the server's own drawing, without a script."""
    losses = [row.loss for row in snapshot.steps if row.loss is not None]
    facts = [f"<strong>{escape(run)}</strong>", f"step {snapshot.steps[-1].step if snapshot.steps else 0:,}"]
    facts += [f"loss {losses[-1]:.3f}"] if losses else []
    return (
        f'<!doctype html><html lang="en" class="{escape(theme)}"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><meta http-equiv="refresh" content="{RENEWED_S}">'
        f"<title>Loss of {escape(run)}</title><style>{STYLE}</style></head><body>"
        f'<a href="{escape(address)}/" target="_blank" rel="noopener">'
        f"<p>{''.join(f'<span>{fact}</span>' for fact in facts)}</p>"
        f'<img src="{curve}" alt="Loss over global steps" width="720" height="280"></a></body></html>'
    )
