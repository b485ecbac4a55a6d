"""Checkpoints on the operator's disk: manifest, writing, probing, validation, rewinding, export.

The keeper writes them; others read them by `manifest` and `validations`. `validator` is a process of its own.
"""
