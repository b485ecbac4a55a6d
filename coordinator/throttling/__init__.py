"""Limits on rates and costs of requests, and batching of writes.

Control plane, web, members and ledger import these modules; they know nothing of a run.
"""
