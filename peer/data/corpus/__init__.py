"""Preparation of a corpus for a run: sampling by perplexity, deduplication, and a report.

Used only by the command line.
"""
