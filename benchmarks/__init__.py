"""Benchmarks without assertions: each module prints a table of our figures, a baseline's figures and the ratios."""
