"""Packed, masked batches from chunks of token ids.

`batches` opens a run's stream and follows its phases, `synthetic` makes random batches for
measurements. Other folders import these two; the other modules are steps of the stream.
"""
