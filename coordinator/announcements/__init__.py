"""Announcements of milestones in chats by webhook, in a separate process.

`coordinator.service.parts` starts `herald`.
"""
