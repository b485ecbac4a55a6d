"""Speed and memory of training on one machine."""
