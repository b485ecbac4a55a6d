"""Downstream tasks, which run in a separate process: their data, fine-tuning and metrics.

`plan`, `results` and `running` do not import torch; `worker` does.
"""
