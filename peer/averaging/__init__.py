"""Averaging of gradients with a group of peers: matchmaking, shares of the work, all-reduce, PowerSGD.

`peer.swarm` imports these modules, `peer.training` only `low_rank`. The checks of what others send are in
`peer.reduction`.
"""
