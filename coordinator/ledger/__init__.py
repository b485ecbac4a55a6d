"""The ledger of samples, each counted exactly once, with the state of devices and of the swarm.

`ledger` records reports and receipts, `judgement` validates and counts them, and `reading` and
`speed` compute statistics. Each of the other modules maintains its own tables.
"""
