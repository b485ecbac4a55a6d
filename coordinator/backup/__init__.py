"""Backup and restore of a run, also to another machine or another kind of database.

Only the command line imports these modules.
"""
