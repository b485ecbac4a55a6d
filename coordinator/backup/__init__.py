"""Backup of a run, and its restore, also to another machine or another kind of database.

Only the command line imports these modules.
"""
