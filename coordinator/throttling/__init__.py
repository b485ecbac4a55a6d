"""Limits on rates and costs of requests, and work that many of them share.

Control plane, web, members and ledger import these modules; they know nothing of a run.
"""
