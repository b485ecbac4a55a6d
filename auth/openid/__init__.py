"""OpenID Connect: provider metadata, ID tokens, and login by authorization-code or device flow.

The coordinator imports `provider`, `relying_party` and `flows`. This package does not depend on
gRPC, web pages or the database; the coordinator decides what an authenticated identity may do.
"""
