"""Selection of documents: filters, held-out documents, duplicates, perplexity.

`peer.data.sources` uses `filters`, and modules that handle held-out documents use `hashing`; the
other modules serve the preparation of a corpus.
"""
