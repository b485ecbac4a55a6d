"""The ledger: reports and receipts of each step, counted once, presence of devices, and steering of the run.

`ledger`, `presence` and `steering` write; `contributions`, `shares` and `speed` are read by all packages above.
"""
