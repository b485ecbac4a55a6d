"""The control plane's gRPC server: admission, sessions, relays, checkpoint offers.

The service imports `server`; the other modules are its parts.
"""
