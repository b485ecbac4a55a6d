"""The public JSON API, one module for each group of routes.

`coordinator.web.app` imports the routers; answers come from the snapshot in `coordinator.web.state`.
"""
