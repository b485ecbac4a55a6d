"""The peer's side of the control plane: client, login, session, checkpoints, reachability.

The agent, the doctor and the command line import these modules, the coordinator's doctor `client`. They use gRPC, so no
process that computes may import them.
"""
