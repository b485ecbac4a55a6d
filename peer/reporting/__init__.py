"""Messages of worker and agent, reports to the coordinator, advice, suspicions, metrics, event log.

`messages` declares the messages, `wire` converts them to protobuf, and `outbox` stores reports
until they are acknowledged. Every process may import this folder; a worker imports neither `wire`,
which uses the protocol's stubs, nor `outbox`.
"""
