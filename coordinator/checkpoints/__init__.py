"""Checkpoints on the operator's disk: writing, verifying, evaluating, exporting, and rewinding to them.

The keeper writes checkpoints; other processes use `manifest` and `validations` to read them.
"""
