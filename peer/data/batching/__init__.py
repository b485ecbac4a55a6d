"""Packed, masked batches from chunks of token ids.

The worker and the validator import `batches` (`open_batches`) and `validation_set`; the other modules are its steps.
"""
