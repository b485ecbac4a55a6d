"""A run on the operator's disk: directory, settings, secrets, keys, ports, logs, software.

All packages above may import these modules.
"""
