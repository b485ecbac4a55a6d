"""The public pages: views, translations, assets, headers, and the form that an archive of them takes.

`coordinator.web.app` imports the routers; templates lie in `dashboards`.
"""
