"""Sources of documents: files here or on the web, datasets, the built-in corpus, each resumable at a position.

`documents` mixes a run's sources for batches and tokenizers, and opens one source of any kind for the preparation of a
corpus. Others import it, `faults`, `reader`, and `prefetching`, which also makes batches ahead.
"""
