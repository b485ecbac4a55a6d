"""Limits on the rate and cost of requests, and work that many requests share.

Control plane, web, members and ledger import these modules, which depend on no run.
"""
