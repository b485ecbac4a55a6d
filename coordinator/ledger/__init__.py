"""The ledger: reports and receipts of each step, counted once, presence of devices, and steering of the run.

`ledger` writes, `reading` and `speed` read, `presence` and `steering` do both; all packages above use these.
`judgement` decides without a database which reports and samples count.
"""
