"""OpenID Connect: what a provider says of itself, how it is asked, and how its word is checked.

Nothing here knows of gRPC, of the web or of the run's members: who drives a login decides
what an identity is good for.
"""
