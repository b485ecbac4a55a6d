"""Reduction of other peers' gradients: compression, screening, clipping, caps, audits and findings.

`peer.averaging` imports these modules; `peer.swarm` imports `guard`, `shared_caps`, `compression`,
`sizes` and `findings`, `peer.training` and `peer.doctor` `sizes`. Rules are pure functions of
parts; only `audit_rpc` communicates with peers.
"""
