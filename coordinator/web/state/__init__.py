"""The state shared by all routes: one snapshot, refreshed in the background, and metrics.

Routes access the state as `web_state.Web`; this package does not depend on routes.
"""
