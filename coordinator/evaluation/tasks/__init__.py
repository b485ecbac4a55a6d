"""Downstream tasks: data, fine-tuning, metrics, each task in a process of its own.

`plan` and `results` are light and may be imported by all; `worker` and what it imports bring torch.
"""
