"""A rehearsed event as a run of its own: simulated happenings in a real store, and the dashboard over it.

Only the command line imports this folder, so that it can be deleted in one commit.
"""
