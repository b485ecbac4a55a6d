"""Members and their devices: invites, logins, names, quarantine, revocation, erasure.

`membership` admits devices. `context`, control plane, keeper, web and commands import from here.
"""
