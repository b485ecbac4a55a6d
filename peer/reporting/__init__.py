"""Messages between worker and agent, reports of steps, suspicions and metrics.

`messages` holds the shapes, `wire` their protobuf form, `outbox` what waits for the coordinator. Every process may
import `messages`, `suspicions` and `metrics`; `wire` uses the protocol's stubs, which no worker imports.
"""
