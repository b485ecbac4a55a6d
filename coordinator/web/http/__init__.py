"""HTTP below the routes: server, limits, compression, caching, paging, CORS.

Routes import `answers` and `paging`; the service imports `server`.
"""
