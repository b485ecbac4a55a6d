"""Backup of a run, and its restoration, if need be on another machine or kind of database.

Only the command line imports these modules.
"""
