"""Verification by anyone: a run's published receipts and certificates, checked without its coordinator.

The command line imports these modules; the coordinator's ledger imports the rule of credit in `receipts`.
"""
