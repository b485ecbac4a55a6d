"""The public JSON API, one module for each group of routes.

`coordinator.web.app` imports the routers, pages some answers; most come from the snapshot in `coordinator.web.state`.
"""
