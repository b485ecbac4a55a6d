"""The dashboard's server: one page, its API, live events, metrics and health, all from one snapshot of the store."""

from coordinator.web.app import WebState, create_app

__all__ = ["WebState", "create_app"]
