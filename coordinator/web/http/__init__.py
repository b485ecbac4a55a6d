"""HTTP below the routes: server, limits, compression, caching, paging, CORS.

Routes import `answers` and `paging`; the application imports `boundary` and `cors`; the service imports `server`.
"""
