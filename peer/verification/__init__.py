"""Public verification of a run's published receipts, without trusting its coordinator.

Used by the command line. The ledger uses only `receipts`, to compute credits.
"""
