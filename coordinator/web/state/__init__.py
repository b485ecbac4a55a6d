"""State behind all routes: one snapshot, refreshed in the background, with live events and metrics.

Routes read `snapshot`, `live`, `events` and `overview`; nothing here knows of a route.
"""
