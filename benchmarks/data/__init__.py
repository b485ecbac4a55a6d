"""From text to masked batches."""
