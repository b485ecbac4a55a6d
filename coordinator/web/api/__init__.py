"""The public JSON API, one module per group of routes.

`coordinator.web.app` imports the routers. Most responses are computed from a snapshot.
"""
