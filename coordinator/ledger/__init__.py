"""The ledger: the samples of each step, counted exactly once, and the state of devices and the swarm.

`ledger` records reports and receipts, `judgement` validates and counts them, `reading` and `speed`
compute results. The other modules maintain tables of their own.
"""
