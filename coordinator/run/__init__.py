"""A run on the operator's machine: directory, settings, secrets, keys, ports, logs and software.

All higher-level packages may import these modules.
"""
