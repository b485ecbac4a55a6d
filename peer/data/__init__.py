"""The data path from a run's sources to masked batches, and the preparation of corpora.

`prepare` makes the tokenizer of a new run. The other modules are in `sources`, `selection`,
`tokenization`, `batching` and `corpus`.
"""
