"""Downstream tasks: their data, fine-tuning and metrics. Each task runs in a separate process.

`plan`, `results` and `running` may be imported anywhere; `worker` imports torch.
"""
