"""What the time machine's template needs: how far the run is, its curve, and its milestones."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from coordinator.web.moments_api import milestones_of
from coordinator.web.overview_page import curve_of, curve_texts
from coordinator.web.snapshot import Snapshot
from coordinator.web.translations import Texts


def history_values(state: Any, texts: Texts) -> dict[str, Any]:
    """The values of `history.html`; `state` is the application's."""
    snapshot: Snapshot = state.live.current
    drawing = curve_of(snapshot, state.config, curve_texts(texts))
    return {
        "last": snapshot.steps[-1].step if snapshot.steps else 0,
        "curve": Markup(drawing),  # noqa: S704  # `draw_curve` escapes what is text in it
        "milestones": milestones_of(snapshot).milestones,
    }
