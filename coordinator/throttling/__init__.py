"""Limits on rates and costs of requests, and batching of writes.

Control plane and web import these modules; they know nothing of a run.
"""
