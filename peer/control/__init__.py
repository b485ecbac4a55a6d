"""The peer's side of the control plane: handshake, login, session, checkpoints, reachability.

The agent and the doctor import these modules. They use gRPC, so no process that computes may import them.
"""
