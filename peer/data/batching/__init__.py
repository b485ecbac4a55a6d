"""Packed, masked batches from chunks of token ids.

`batches` opens a run's stream and follows its phases, `validation_set` holds the held-out samples, `synthetic` makes
batches to measure with. Others import these three; the other modules are steps of the stream.
"""
