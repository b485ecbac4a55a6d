"""Tools for all processes: child processes, console output, log limits, redaction, versions, devices.

Every program imports from this package, which does not import torch.
"""
