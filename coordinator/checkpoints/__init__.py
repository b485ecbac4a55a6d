"""Checkpoints on the operator's disk: manifest, writing, probing, validation, rewinding, export.

The keeper writes them; others read them through `manifest` and `validations`.
"""
