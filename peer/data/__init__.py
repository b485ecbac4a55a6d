"""The data pipeline from a run's sources to masked batches, and the preparation of corpora.

`prepare` creates the tokenizer of a new run. The other modules are in `sources`, `selection`,
`tokenization`, `batching` and `corpus`.
"""
