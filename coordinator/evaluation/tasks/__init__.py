"""Downstream tasks: data, fine-tuning and metrics; each task runs in a process of its own.

`plan`, `results` and `running` are light and may be imported anywhere; `worker` imports torch.
"""
