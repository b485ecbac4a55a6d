"""Faults: what each costs a run, and who is named."""
