"""Messages of worker and agent, reports to the coordinator, advice, suspicions, metrics, event log.

`messages` declares messages, `wire` converts them to protobuf, `outbox` stores reports until they
are acknowledged. Any process may import this folder; a worker imports neither `wire` nor `outbox`.
"""
