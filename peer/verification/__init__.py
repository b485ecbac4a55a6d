"""Verification by anyone: a run's published receipts and certificates, checked without its coordinator.

The command line imports these modules; the coordinator's ledger and the swarm import the rule of credit in `receipts`.
"""
