"""One peer's part in the swarm: its DHT node, its moves towards a global step, and the shared state.

The worker and the keeper use `swarm`, which makes the parts; `moves` work towards the steps.
"""
