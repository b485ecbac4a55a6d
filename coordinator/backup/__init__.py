"""Backup, restoring, and handing a run over to another operator.

Only the command line imports these modules; the supervisor also checks that a run was not handed over.
"""
