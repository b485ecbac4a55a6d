"""The dashboard's server: pages, API, live events, metrics and health, all from one snapshot of the store.

`coordinator.service` imports `app`, `http` and `state`, the command line `archive`.
"""
