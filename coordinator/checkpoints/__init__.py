"""Checkpoints on the operator's disk: writing, verification, evaluation, export and rewind.

The keeper writes checkpoints; other processes use `manifest` and `validations` to read them.
"""
