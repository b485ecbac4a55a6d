"""Announcements of milestones in chats, sent through webhooks by a separate process.

`coordinator.service.parts` starts `herald`.
"""
