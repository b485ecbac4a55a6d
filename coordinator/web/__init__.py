"""The dashboard's server: pages, API, live events, metrics and health, all drawn from one snapshot.

`coordinator.service` imports `app`, `http` and `state`; the command line imports `archive`.
"""
