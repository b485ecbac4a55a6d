"""The pictures of `manyhands corpus sample`: how perplexities are distributed before and after, as PNG and as one page.

After figures 2 to 6 of BERTIN. The only module that imports matplotlib, and only when something is drawn.
"""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from auth.errors import ConfigError
from peer.data.selection.perplexity import PerplexityTally
from peer.runtime.software import how_to_add

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY, BLUE, RED, INK = "#9aa3ad", "#2563a8", "#c0392b", "#222222"
SMOOTHING = np.array([1, 2, 3, 2, 1]) / 9  # of neighbouring bins, so that few documents make a curve, too
STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
svg{width:100%;height:auto}table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .9rem;text-align:right;
border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left;padding-left:0}
pre{background:#f4f5f7;padding:1rem;overflow:auto;border-radius:6px}
"""


def write_pictures(tally: PerplexityTally, title: str, folder: Path) -> str:
    """Draw `distributions.png` in the folder; returns the same picture as SVG. Raises `ConfigError`."""
    figure = _draw(tally, title)
    figure.savefig(folder / "distributions.png", dpi=130)
    vector = io.StringIO()
    figure.savefig(vector, format="svg")
    return vector.getvalue()[vector.getvalue().index("<svg") :]


def write_page(path: Path, title: str, picture: str, table: Sequence[Sequence[str]], fragment: str) -> None:
    """One page that needs nothing else: the picture, the table (its first row the headings) and the run file's part."""
    rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in table[1:]]
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table[0])
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style><h1>{html.escape(title)}</h1>'
        f"{picture}<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
        "<p>To draw the same documents while a run streams the corpus, write this in its run file:</p>"
        f"<pre>{html.escape(fragment)}</pre></html>\n",
        encoding="utf-8",
    )


def _draw(tally: PerplexityTally, title: str) -> Figure:
    try:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            f"Drawing needs the package matplotlib, which is not installed: {how_to_add('corpus')}."
        ) from error
    figure = Figure(figsize=(10, 7), layout="constrained")
    FigureCanvasSVG(figure)
    figure.suptitle(title, fontsize=13)
    densities, shares = figure.subplots(2, 1, height_ratios=(3, 1))
    _draw_densities(densities, tally)
    _draw_shares(shares, tally)
    return figure


def _draw_densities(axes: Axes, tally: PerplexityTally) -> None:
    middles = (tally.edges[1:] + tally.edges[:-1]) / 2
    before, expected, kept = (_smooth(tally.density(name)) for name in ("before", "expected", "kept"))
    axes.fill_between(middles, before, color=GREY, alpha=0.45, linewidth=0, label=f"all {tally.documents:,} documents")
    axes.fill_between(middles, kept, color=BLUE, alpha=0.35, linewidth=0, label=f"the {tally.kept:,} that are kept")
    axes.plot(middles, kept, color=BLUE, linewidth=1.6)
    axes.plot(middles, expected, color=INK, linewidth=1, linestyle=":", label="as expected")
    top = max(before.max(), kept.max(), expected.max()) * 1.12
    for number, bound in enumerate(tally.quartiles, 1):
        axes.axvline(bound, color=RED, linewidth=1)
        axes.annotate(f" Q{number} {bound:,.4g}", (bound, top * (1.005 - 0.05 * number)), color=RED, fontsize=9)
    axes.set(xlim=(tally.edges[0], tally.edges[-1]), ylim=(0, top), xlabel="perplexity", ylabel="density", yticks=[])
    axes.legend(frameon=False, loc="upper right")
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw_shares(axes: Axes, tally: PerplexityTally) -> None:
    names = ("up to Q1", "Q1 to Q2", "Q2 to Q3", "above Q3")
    for offset, name, colour in ((-0.2, "before", GREY), (0.2, "kept", BLUE)):
        share = tally.parts[name] / max(tally.parts[name].sum(), 1)
        bars = axes.bar(np.arange(4) + offset, share, 0.38, color=colour, alpha=0.8)
        axes.bar_label(bars, [f"{value:.1%}" for value in share], fontsize=9, padding=2)
    axes.set(xticks=range(4), xticklabels=names, yticks=[], ylabel="share of documents")
    axes.margins(y=0.2)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _smooth(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    reach = len(SMOOTHING) // 2
    return np.convolve(np.pad(values, reach, mode="edge"), SMOOTHING, mode="valid")
