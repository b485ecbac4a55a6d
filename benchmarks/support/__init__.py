"""Helpers shared by several benchmarks: reports, small runs, hosts with shaped links."""
