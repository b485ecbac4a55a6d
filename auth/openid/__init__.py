"""OpenID Connect: a provider's metadata, its identity tokens, and the two ways to log in (code flow, device flow).

The coordinator imports `provider`, `relying_party` and `flows`. Nothing here imports gRPC, web pages or the database:
the coordinator decides what an identity is good for.
"""
