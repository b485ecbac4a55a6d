"""Throughput of the data pipeline from text to masked batches."""
