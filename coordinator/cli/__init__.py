"""The operators' commands.

Only `manyhands` imports these modules; it maps their errors to exit codes.
"""
