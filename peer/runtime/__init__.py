"""A process's surroundings: child processes, console, redaction of secrets, versions, devices, software.

Every program imports from here; nothing here imports torch.
"""
