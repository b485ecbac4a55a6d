"""Tools for every process: child processes, console output, log limits, redaction, versions, devices.

Every program imports from this package, and nothing in it imports torch.
"""
