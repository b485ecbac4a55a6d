"""Public verification of a run's published receipts, without trust in its coordinator.

Used by the command line. The ledger uses only `receipts`, for its rule of credit.
"""
