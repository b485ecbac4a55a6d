"""The peer's side of the control plane: connection, login, session, checkpoints and reachability.

The agent, the doctor and the command line import these modules; the coordinator's doctor imports
`client`. Processes that train or average must not import them, because they use gRPC.
"""
