"""Members and their devices: invites, logins, names, quarantine, revocation, erasure.

`membership` admits. Control plane, web and commands import these modules.
"""
