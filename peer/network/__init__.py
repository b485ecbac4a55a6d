"""Addresses, endpoints and transfers: reach peers and files, and count and limit the traffic.

Agents, workers and the coordinator import these modules; none imports torch, hivemind or gRPC.
"""
