"""The ledger: reports and receipts of each step, counted once, and what follows from them.

`ledger` and `receipts` write. Everything else reads by the functions of `contributions`, `presence`, `shares`.
"""
