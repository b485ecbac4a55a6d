"""Downstream tasks: data, fine-tuning, metrics, each task in a process of its own.

`plan`, `results` and `running` are light and may be imported by all; `worker` and its imports bring torch.
"""
