"""Sources of documents: files here or on the web, datasets, the built-in corpus, each resumable at a position.

`peer.data.batching` imports `documents`, which mixes a run's sources; `open` reads one source of any kind.
"""
