"""Reduction of gradients from others: compression, screening, clipping, caps, audits and their findings.

`peer.averaging` imports `combine`, `guard` and `compression`; `peer.swarm` the audit and its findings. Each rule is a
pure function of the parts that it is given.
"""
