"""The control plane's gRPC server: admission, sessions, relays, checkpoint offers.

The service imports `server` and the limits in `admission`; the other modules are its parts.
"""
