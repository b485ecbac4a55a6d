"""Checkpoints on the operator's disk: manifest, writing, probing, validation, rewinding, export.

The keeper writes them; service, web and publishing read them by `manifest`. `validator` is a process of its own.
"""
