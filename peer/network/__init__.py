"""Addresses, endpoints and transfers: where peers and files are reached, and how much traffic that takes.

Agents, workers and the coordinator import these modules; none imports torch, hivemind or gRPC.
"""
