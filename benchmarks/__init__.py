"""Measures, never asserts: each module prints a table with our figure, the baseline's and their ratio."""
