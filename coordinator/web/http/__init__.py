"""HTTP infrastructure: server, limits, headers, login, compression, caching, paging.

Imported by routes (`answers`), the application (`boundary`, `headers`) and the service (`server`).
"""
