"""Packed, masked batches from chunks of token ids.

`batches` opens a run's stream and follows its phases, and `synthetic` generates random batches for
measurements. Only these two modules are used outside this folder.
"""
