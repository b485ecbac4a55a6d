"""Selection of documents: filters, held-out documents, duplicates, perplexity.

`peer.data.sources` imports `filters`; modules that deal with held-out documents import `hashing`;
the preparation of a corpus imports the others.
"""
