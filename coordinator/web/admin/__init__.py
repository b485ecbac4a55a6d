"""Administration by the web: pages and login of administrators. `coordinator.web.app` imports the routers."""
