"""Gradient averaging within a group of peers: meetings, shares, all-reduce and compression.

`peer.swarm` uses these modules. `peer.reduction` validates data received from other peers.
"""
