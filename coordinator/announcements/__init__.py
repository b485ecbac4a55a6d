"""Announcements to chats and webhooks: milestones, alarms, new checkpoints.

`herald` is a part of the service; `deliveries` keeps what is still to be sent. Only the list of parts imports it.
"""
