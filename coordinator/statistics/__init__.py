"""Statistics of a run, computed from the store: people, sessions, milestones, alarms, loss curve.

Web, announcements and publishing read them; the keeper writes `alarms` and `swarm_health`.
"""
