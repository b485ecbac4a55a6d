"""A run on the operator's disk: directory, settings, secrets, keys, ports, logs and software.

Any higher-level package may import these modules.
"""
