"""Shared tools: child processes, console output, log limits, redaction, versions, device options.

Every program imports from this package, which does not import torch.
"""
