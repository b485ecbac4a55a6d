"""The control plane's gRPC server: admission, sessions, relays, and requests of strangers.

The service imports `server` and the limits in `admission`; the other modules are its parts.
"""
