"""Announcement of milestones in chats through webhooks, by a separate process.

`coordinator.service.parts` starts `herald`.
"""
