"""Lies, revocation and faults: what each costs, and who is named."""
