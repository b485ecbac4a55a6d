"""The volunteers' commands, such as join, doctor and verify, and those that prepare a run.

Only the program `manyhands` imports these modules; each command calls the packages below it.
"""
