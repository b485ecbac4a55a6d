"""Messages between worker and agent, reports of steps, suspicions, warnings and metrics.

`messages` holds the shapes, `wire` their protobuf form, `outbox` what waits for the coordinator. Every process of a
peer may import `messages`, `suspicions` and `metrics`; the others use the protocol's stubs.
"""
