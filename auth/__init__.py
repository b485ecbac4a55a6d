"""Keys, tokens, certificates and receipts: who may take part in a run, and how anyone can check it.

Every other package may import these modules. They import no other package of ours and no torch; only those of
`auth.swarm` import hivemind.
"""
