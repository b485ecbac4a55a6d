"""Averaging of gradients with a group of peers: matchmaking, shares, all-reduce, and the codes of gradients.

`peer.swarm` imports these modules. The checks of what others send are in `peer.reduction`.
"""
