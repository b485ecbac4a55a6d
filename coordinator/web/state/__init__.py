"""State behind all routes: one snapshot, refreshed in the background, and metrics.

Routes read `snapshot`, `live` and `overview`; nothing here knows of a route.
"""
