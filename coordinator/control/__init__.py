"""The gRPC server of the control plane: admission, sessions, relays, and calls without an account.

The service process imports `server` and the limits in `door`; the other modules are internal.
"""
