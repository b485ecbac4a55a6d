"""Choice among documents: filters, held-out documents, duplicates, perplexity.

`peer.data.sources` imports `filters`, and whatever deals with held-out documents `hashing`; the preparation of a corpus
imports the others.
"""
