"""Keys, tokens, certificates and receipts, which prove membership and contributions in a run.

All other packages may import these modules. They depend neither on another package of manyhands nor
on torch; only `auth.swarm` imports hivemind.
"""
