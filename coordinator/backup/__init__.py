"""Backup, restoring, and handing a run over to another operator.

Only the command line imports these modules.
"""
