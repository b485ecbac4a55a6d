"""Members and their devices: invites, logins, names, quarantine, revocation, erasure.

`membership` admits devices. The control plane, the keeper, web pages and commands use this package.
"""
