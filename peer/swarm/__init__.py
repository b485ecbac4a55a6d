"""The swarm from one peer's perspective: DHT records, the global step, shared state and averaging.

`view` and `credit` contain pure decisions. The worker and the keeper use `swarm` and `fingerprint`.
"""
