"""Statistics of a run, computed from the store: people, sessions, milestones, alarms, loss curve.

`web`, `announcements` and `publishing` use these modules; the keeper writes alarms and figures.
"""
