"""The dashboard's server: pages, API, live events, metrics and health, all based on one snapshot.

`coordinator.service` imports `app`, `http` and `state`; the command line imports `archive`.
"""
