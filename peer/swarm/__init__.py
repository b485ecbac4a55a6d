"""One peer's part in the swarm: DHT records, the global step, the shared state and averaging.

`view` and `credit` are pure. The worker and the keeper use `swarm` and `fingerprint`.
"""
