"""State behind all routes: one snapshot, refreshed in the background, and metrics.

Routes get it as `web_state.Web`; nothing here knows of a route.
"""
