"""The swarm as a peer sees it: records in the DHT, view of the global step, state, and the optimizer of all.

The worker and the keeper import `swarm` and `fingerprint`, the worker `state`, too. Decisions are pure functions in
`view` and `credit`.
"""
