"""Backup and restoration of a run, even to another machine or another kind of database.

Only the command line imports these modules.
"""
