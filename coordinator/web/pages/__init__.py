"""The public pages: views, translations, guide, login at a provider, and link preview image.

`coordinator.web.app` imports the routers; templates are in `dashboards`.
"""
