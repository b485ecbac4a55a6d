"""Addresses, endpoints and transfers: reaching peers and files, counting and limiting traffic.

Agents, workers and the coordinator import them. They use neither torch, hivemind nor gRPC.
"""
