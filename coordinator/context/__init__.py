"""Objects shared by the coordinator's parts: database, members, telemetry, refusals, notifications.

`services` opens them for control plane and web server, `open_run` for the operator's commands.
"""
