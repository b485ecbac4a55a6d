"""HTTP infrastructure: server, limits, headers, login, compression, caching, paging.

Routes import `answers`, the application imports `boundary` and `headers`, the service `server`.
"""
