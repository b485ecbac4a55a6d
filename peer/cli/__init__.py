"""Volunteers' commands, such as join, doctor and verify, and commands that prepare a run.

Only the program `manyhands` imports these modules.
"""
