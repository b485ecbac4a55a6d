"""Objects shared by the coordinator's parts: database, members, telemetry, refusals, notifications.

`services` opens the objects for the service process, `open_run` for the operator's commands.
"""
