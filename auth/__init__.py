"""Keys, tokens, certificates and receipts, which prove membership and contributions in a run.

All other packages may import these modules, which depend on no other manyhands package. Only
`auth.swarm` depends on torch, through hivemind.
"""
