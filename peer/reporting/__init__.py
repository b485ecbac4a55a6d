"""Messages between worker and agent, reports of steps, suspicions and metrics.

`messages` holds the shapes, `wire` their protobuf form, `outbox` what waits for the coordinator, `advice` the words on
what keeps samples from counting. Every process may import these but `wire`, which uses the protocol's stubs, and
`outbox`: no worker imports them.
"""
