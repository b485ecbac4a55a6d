"""Limits on the rate and cost of requests, and work shared between requests.

Control plane, web server, members and ledger import these modules, which do not depend on a run.
"""
