"""The public pages: views, translations, the guide, login by a provider, the picture beside a link.

`coordinator.web.app` imports the routers; templates lie in `dashboards`.
"""
