"""What the run's public page offers beside numbers and curves."""

from __future__ import annotations

from peer.config.base import Section


class Dashboard(Section):
    """`try_it`: visitors may give the newest published checkpoint a sentence, and the coordinator's CPU answers."""

    try_it: bool = True
