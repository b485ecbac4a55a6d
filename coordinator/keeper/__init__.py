"""The keeper: the operator's own peer, which follows the swarm, counts steps and writes checkpoints.

`coordinator.service.parts` starts it with `opening`. As a part of the swarm it never imports gRPC.
"""
