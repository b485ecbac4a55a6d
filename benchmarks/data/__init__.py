"""Speed of the path from text to masked batches."""
