"""HTTP below the routes: server, limits, compression, caching, paging.

Routes import `answers`; the application imports `boundary`; the service imports `server`.
"""
