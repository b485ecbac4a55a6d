"""OpenID Connect: a provider's metadata, its ID tokens, and login by code flow or device flow.

The coordinator imports `provider`, `relying_party` and `flows`. Nothing here imports gRPC, web
pages or the database; the coordinator decides what an identity may do.
"""
