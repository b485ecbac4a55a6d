"""The keeper: the operator's own peer, which follows the swarm, counts steps and writes checkpoints.

The list of parts starts `keeper`. It takes part in the swarm, so it never imports gRPC.
"""
