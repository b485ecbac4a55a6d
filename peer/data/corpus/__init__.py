"""Preparation of a corpus for a run: sampling by perplexity without duplicates, and a report.

Only the command line imports these modules.
"""
