"""Verification by anyone: a run's published receipts and certificates, checked without its coordinator.

Only the command line imports these modules.
"""
