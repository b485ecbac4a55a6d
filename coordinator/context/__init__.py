"""Objects shared by the coordinator's parts: database, members, telemetry, refusals, notifications.

`services` opens them for control plane and web, `open_run` for other commands.
"""
