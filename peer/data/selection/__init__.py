"""Choice among documents: filters, held-out documents, duplicates, perplexity.

`peer.data.sources` imports `filters` and `hashing`; the preparation of a corpus imports the others.
"""
