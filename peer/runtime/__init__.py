"""A process's environment: child processes, console, log, redaction, versions, devices, software.

Every program imports from this folder; nothing here imports torch.
"""
