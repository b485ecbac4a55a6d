"""Checkpoints on the operator's disk: writing, verification, evaluation, export and rewind.

The keeper writes checkpoints; other processes read them through `manifest` and `validations`.
"""
