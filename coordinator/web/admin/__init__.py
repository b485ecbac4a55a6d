"""Administration by the web: pages for administrators, who log in by `coordinator.web.http.login`.

`coordinator.web.app` imports the routers.
"""
