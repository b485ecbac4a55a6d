"""Reduction of other peers' gradients: compression, screening, clipping, caps, audits and findings.

The rules are pure functions of received parts; only `auditing` communicates with peers.
`peer.averaging` runs the reduction. `peer.swarm`, `peer.training` and `peer.doctor` use individual
modules, such as `sizes`.
"""
