"""Addresses, endpoints and transfers: reaching peers, downloading files, limiting traffic.

Agents, workers and the coordinator import these modules, which need no torch, hivemind or gRPC.
"""
