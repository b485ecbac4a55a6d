"""Members and their devices: invites, logins, names, quarantine, revocation, erasure.

`membership` admits. The services in `context`, control plane, keeper, web and commands import these modules.
"""
