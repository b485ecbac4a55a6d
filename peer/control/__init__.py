"""The peer's side of the control plane: client, login, session, checkpoints, reachability.

The agent, the doctor and the command line import these modules; the coordinator's doctor imports
`client`. The modules use gRPC, so no process that trains or averages may import them.
"""
