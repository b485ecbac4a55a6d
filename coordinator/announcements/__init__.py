"""Announcements of milestones in chats, by webhooks, in a process of its own.

`coordinator.service.parts` starts `herald`.
"""
