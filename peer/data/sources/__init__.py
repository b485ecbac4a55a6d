"""Sources of documents: files, datasets and the built-in corpus, each resumable at a position.

`documents` mixes a run's sources for batches and tokenizers, and opens one source for the preparation of a
corpus. Other folders import it, `faults`, `reader`, and `prefetching`, which also makes batches ahead.
"""
