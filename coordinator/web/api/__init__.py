"""The public JSON API, one module for each group of routes.

`coordinator.web.app` imports the routers; pages import some answers. Most are made from a snapshot.
"""
