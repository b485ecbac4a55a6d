"""A peer's reporting: messages of worker and agent, advice, suspicions, metrics, and the event log.

`messages` declares messages, `wire` converts them to protobuf, and `outbox` stores reports until
they are acknowledged. Workers must not import `wire` or `outbox`.
"""
