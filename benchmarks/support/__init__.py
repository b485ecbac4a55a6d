"""Helpers of several benchmarks: reports, small runs, hosts with lines of their own."""
