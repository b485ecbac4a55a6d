"""Keys, tokens, certificates and receipts, which prove membership and contributions in a run.

All other packages may import these modules. The modules depend on no other manyhands package;
except for `auth.swarm`, which needs hivemind, they also do not depend on torch.
"""
