"""Administration by the web: pages, API and login of administrators.

`coordinator.web.app` imports the routers. `administration` performs an action for pages, API and commands alike.
"""
