"""Averaging of gradients with a group of peers: matchmaking, shares, all-reduce, PowerSGD, sparse gradients.

`peer.swarm` imports these modules, `peer.training` only `power_sgd`. The checks of what others send are in
`peer.reduction`.
"""
