"""The public pages: views, translations, assets, headers, and a frozen copy of them.

`coordinator.web.app` imports the routers; templates lie in `dashboards`.
"""
