"""The keeper: the operator's own peer, which follows the swarm, counts steps and writes checkpoints.

`coordinator.service.parts` starts it with `opening`. The keeper forks, so it never imports gRPC.
"""
