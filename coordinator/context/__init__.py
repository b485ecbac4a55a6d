"""Objects that the parts of a coordinator share: database, members, telemetry, refusals, changes.

`services` holds them all, for control plane and web. `open_run` opens a run for other commands.
"""
