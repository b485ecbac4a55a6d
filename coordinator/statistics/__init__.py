"""Statistics of a run from the store: people, timeline, milestones, alarms, loss curve, certificates.

Web, announcements and publishing only read them. The keeper writes the rows of `alarms` and `swarm_health`.
"""
