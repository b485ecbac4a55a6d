"""Announcements of milestones to chats, by webhooks, in a process of its own.

The list of parts starts `herald`.
"""
