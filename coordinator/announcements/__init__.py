"""Announcements of milestones in chat rooms, posted through webhooks by a separate process.

`coordinator.service.parts` runs `herald` in that process.
"""
