"""Reports of a peer: messages between worker and agent, advice, suspicions, metrics, the event log.

`messages` declares messages, `wire` converts them to protobuf, and `outbox` stores reports until
they are acknowledged. Workers must not import `wire` and `outbox`.
"""
