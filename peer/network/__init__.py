"""Addresses, endpoints and transfers: reaching peers and files, counting and limiting traffic.

Agents, workers and the coordinator import these modules, which use no torch, hivemind or gRPC.
"""
