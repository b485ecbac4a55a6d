"""Fault injection: the cost of each fault to a run, and the devices wrongly suspected."""
