"""The ledger: what each step is made of, counted once, and what the coordinator knows of devices and swarm.

`ledger` writes and `reading` and `speed` read reports and receipts; `judgement` decides without a database which count.
`sessions`, `keeper_status`, `recorded_checkpoints` and `steering` have their rows. All packages above use these.
"""
