"""A run on the operator's disk: directory, settings, secrets, keys, ports and addresses, logs, software.

Everything above may import these modules.
"""
