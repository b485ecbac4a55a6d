"""The peer's side of the control plane: handshake, login, session, checkpoints, reachability.

The agent, the doctor and the command line import these modules, the coordinator `handshake` and `checkpoints`. They use
gRPC, so no process that computes may import them.
"""
