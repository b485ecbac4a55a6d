"""Statistics of a run from the store: people, timeline, milestones, alarms, loss curve, certificates.

Web, announcements and publishing import these modules; they only read.
"""
