"""A chart for a frame in somebody else's page: HTML and the server's own drawing, without a script. Pure."""

from __future__ import annotations

import base64
import hashlib
from html import escape

from coordinator.web.snapshot import Snapshot

RENEWED_S = 60  # so often it asks for a newer one
STYLE = (
    ":root{color-scheme:light dark}html.light{color-scheme:light}html.dark{color-scheme:dark}"
    "body{margin:0;font:14px system-ui,sans-serif;color:CanvasText;background:Canvas}"
    "a{color:inherit;text-decoration:none;display:block;padding:8px}a:focus-visible{outline:2px solid Highlight}"
    "img{display:block;width:100%;height:auto}p{margin:0 4px 4px;display:flex;flex-wrap:wrap;gap:4px 16px}"
)
EMBED_STYLE_SHA256 = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()  # by which its policy allows it


def embed_page(run: str, snapshot: Snapshot, address: str, theme: str, curve: str = "../curve.svg") -> str:
    """The page in the frame."""
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
