"""Backup of a run, and restoring it, also on another machine or to another kind of database.

Only the command line imports these modules.
"""
