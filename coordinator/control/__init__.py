"""The control plane's gRPC server: admission, sessions, relays, and calls without an account.

The service imports `server` and the limits in `door`; the other modules are parts of the server.
"""
