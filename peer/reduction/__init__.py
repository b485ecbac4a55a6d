"""Reduction of gradients from others: compression, screening, clipping, caps, audits and their findings.

`peer.averaging` imports these modules; `peer.swarm` imports `guard`, `shared_caps`, `compression`, `sizes` and
`findings`, `peer.training` and `peer.doctor` `sizes`. Rules are pure functions of the parts that they are given;
`audit_rpc` talks to peers.
"""
