"""The operators' commands.

Only `manyhands` imports these modules, and it maps their errors to exit codes; each command calls the packages below.
"""
