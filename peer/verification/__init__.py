"""Verification by anyone: check a run's published receipts without trusting its coordinator.

The command line imports these modules; the ledger imports the rule of credit in `receipts`.
"""
