"""Sources of documents: files, datasets and the built-in corpus, each resumable at a position.

`documents` mixes a run's sources for batches and tokenizers, and opens single sources for the
preparation of a corpus. `faults`, `reader` and `prefetching` are also used by other folders.
"""
