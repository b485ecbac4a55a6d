"""The link preview image (Open Graph): a PNG with the run's loss curve and numbers.

The image uses Pillow's built-in font, which requires no system fonts but has only Latin letters.
This suffices for the run's name, numbers, and fixed texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO

from fastapi import APIRouter, Request, Response
from PIL import Image, ImageDraw, ImageFont

from coordinator.statistics.curve import Point, decimate
from coordinator.web.http.answers import answer
from coordinator.web.state.snapshot import Snapshot
from coordinator.web.state.web_state import Web

router = APIRouter(include_in_schema=False)

CARD_S = 300.0  # cache time in seconds; drawing the image takes a third of a second
WIDTH, HEIGHT = 1200, 630  # image size recommended by all sites that show previews
MARGIN = 64
SCALE = 2  # supersampling factor, for smooth lines
CURVE_TOP, CURVE_BOTTOM = 250, 560
MAX_POINTS = 250
BACKGROUND, TEXT, MUTED, LINE, GRID = "#0f1720", "#f3f6f9", "#a3b0bf", "#6ea8ff", "#243140"


@router.get("/card.png")
async def card(request: Request, web: Web) -> Response:
    """Serve the preview image for links to the dashboard."""
    run, snapshot = web.config.run.name, web.snapshot
    version = snapshot.taken_at // CARD_S
    encoded = await web.cards.get("card.png", version, lambda: card_of(run, snapshot), "image/png")
    return answer(request, encoded, f"public, max-age={CARD_S:.0f}")


def card_of(run: str, snapshot: Snapshot) -> bytes:
    """Draw the preview image of a run from a snapshot."""
    loss = [(float(row.step), row.loss) for row in snapshot.steps if row.loss is not None]
    return draw_card(run, loss, snapshot.last_step, snapshot.samples, len(snapshot.contributions))


def draw_card(run: str, loss: Sequence[Point], step: int, samples: int, members: int) -> bytes:
    """Draw the preview image (PNG, 1200 x 630 pixels), with `loss` over global steps."""
    parts = [f"loss {loss[-1][1]:.3f}"] if loss else []
    parts += [f"step {step:,}", f"{large(samples)} samples", f"{members:,} member" + ("" if members == 1 else "s")]
    image = Image.new("RGB", (WIDTH * SCALE, HEIGHT * SCALE), BACKGROUND)
    draw = ImageDraw.Draw(image)
    _text(draw, (MARGIN, 56), "manyhands", 30, MUTED)
    _text(draw, (MARGIN, 96), run, 68, TEXT)
    _text(draw, (MARGIN, 186), "   ·   ".join(parts), 32, MUTED)
    if loss:
        _curve(draw, decimate(loss, MAX_POINTS))
    else:
        _text(draw, (MARGIN, (CURVE_TOP + CURVE_BOTTOM) // 2), "Waiting for the first global step", 36, MUTED)
    _text(draw, (MARGIN, 580), "Trained together by volunteers, on whatever hardware they have", 24, MUTED)
    out = BytesIO()
    image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).save(out, "PNG", optimize=True)
    return out.getvalue()


def large(number: int) -> str:
    """Format a count, such as 12,300 or 4.1 million."""
    for size, word in ((10**9, "billion"), (10**6, "million")):
        if number >= size:
            return f"{number / size:.3g} {word}"
    return f"{number:,}"


def _text(draw: ImageDraw.ImageDraw, place: tuple[int, int], text: str, size: int, color: str) -> None:
    room = (WIDTH - 2 * MARGIN) * SCALE
    length = draw.textlength(text, font=ImageFont.load_default(size * SCALE))
    font = ImageFont.load_default(size * SCALE * min(1.0, room / max(1.0, length)))
    draw.text((place[0] * SCALE, place[1] * SCALE), text, fill=color, font=font)


def _curve(draw: ImageDraw.ImageDraw, points: Sequence[Point]) -> None:
    steps, losses = [x for x, _ in points], [y for _, y in points]
    width, height = WIDTH - 2 * MARGIN, CURVE_BOTTOM - CURVE_TOP
    left, top = min(steps), max(losses)
    spread_x, spread_y = max(steps) - left or 1.0, top - min(losses) or 1.0

    def place(point: Point) -> tuple[float, float]:
        x = MARGIN + (point[0] - left) / spread_x * width
        y = CURVE_TOP + (top - point[1]) / spread_y * height
        return x * SCALE, y * SCALE

    for tick in range(4):
        y = (CURVE_TOP + height * tick / 3) * SCALE
        draw.line([(MARGIN * SCALE, y), ((WIDTH - MARGIN) * SCALE, y)], fill=GRID, width=SCALE)
    places = [place(point) for point in points]
    draw.line(places, fill=LINE, width=3 * SCALE, joint="curve")
    x, y = places[-1]
    radius = 7 * SCALE
    draw.ellipse([x - radius, y - radius, x + radius, y + radius], fill=LINE)
