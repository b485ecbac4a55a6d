"""Data, from a run's sources to masked batches: sources, selection, tokenization, batching, and corpora.

`prepare` makes the tokenizer of a new run. Other modules are imported from the folders.
"""
