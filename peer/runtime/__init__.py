"""The environment of a process: children, console, logs, redaction, versions, devices, software.

Every program imports from this package, and nothing in it imports torch.
"""
