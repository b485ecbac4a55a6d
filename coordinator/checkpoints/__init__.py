"""Checkpoints on the operator's disk: manifest, writing, probe, validation, rewinding and export.

The keeper writes checkpoints; other processes use `manifest` and `validations` to read them.
"""
