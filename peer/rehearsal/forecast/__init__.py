"""Forecasts for operators, based on rehearsals.

`report` summarizes rehearsals of several seeds, `picture` plots them, `advice` tries other
settings, and `planning` writes a run file for an event.
"""
