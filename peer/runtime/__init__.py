"""The environment of a process: child processes, console, log, redaction of secrets, versions, devices, software.

Every program imports from here; nothing here imports torch.
"""
