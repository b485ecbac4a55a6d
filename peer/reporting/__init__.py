"""Messages between worker and agent, reports to the coordinator, advice, suspicions, metrics and the event log.

`messages` declares them, `wire` converts them to protobuf, and `outbox` keeps reports until they are acknowledged.
Every process may import this folder; a worker imports neither `wire`, which uses the protocol's stubs, nor `outbox`.
"""
