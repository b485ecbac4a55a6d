"""Packed, masked batches from chunks of token ids.

`batches` opens a run's stream and follows its phases, `synthetic` makes batches to measure with. Others import these
two; the other modules are steps of the stream.
"""
