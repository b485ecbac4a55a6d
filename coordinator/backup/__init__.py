"""Backup of a run and restoring it, also elsewhere or over another database.

Only the command line imports these modules.
"""
