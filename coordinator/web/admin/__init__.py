"""Web pages for administrators, who log in through `coordinator.web.http.login`.

`coordinator.web.app` imports the routers.
"""
