"""Services that the parts of one coordinator share: database, members, telemetry, refusals, changes.

`services` holds them all; control plane and web import it. `open_run` opens a run for a command, the demo or a release.
"""
