"""Injected faults: the cost of each to a run, and the devices named as suspects."""
