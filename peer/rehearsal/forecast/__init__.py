"""Forecasts for an operator, from rehearsals.

`report` adds up several seeds' rehearsals, `picture` draws them, `advice` tries other settings, and `planning` writes a
run file for an event.
"""
