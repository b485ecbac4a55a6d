"""The public pages: views, translations, the guide, login by a provider, and the link preview image.

`coordinator.web.app` imports the routers; templates are in `dashboards`.
"""
