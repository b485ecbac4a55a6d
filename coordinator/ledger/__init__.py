"""The ledger: the samples of each step, counted once, and the state of devices and of the swarm.

`ledger` records reports and receipts, `judgement` decides which count, `reading` and `speed` read
results. The other modules have rows of their own. All packages above use these modules.
"""
