"""A run on the operator's disk: directory, settings, secrets, keys, ports, logs and software.

These modules may be imported from any higher-level package.
"""
