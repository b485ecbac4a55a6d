"""Preparation of a corpus for a run: a sample of it by perplexity and without duplicates, with a report.

Only the command line imports these modules.
"""
