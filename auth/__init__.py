"""Keys, tokens, certificates and receipts: who may take part in a run, and how anyone can check it.

Every other package may import these modules. They import neither another of our packages nor torch;
only `auth.swarm` imports hivemind.
"""
