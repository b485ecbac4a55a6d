"""Helpers shared by benchmarks: reports, small runs, and hosts with rate-limited links."""
