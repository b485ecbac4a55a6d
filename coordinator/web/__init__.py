"""The dashboard's server: pages, API, live events, metrics and health, all from one snapshot of the store.

`coordinator.service` imports `app`, the command line `archive`. Only `http`, of the folders below, is imported from
outside.
"""
