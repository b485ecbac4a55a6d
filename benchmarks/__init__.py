"""Measurements without assertions: each module prints a table of our figures, the baseline's and their ratios."""
