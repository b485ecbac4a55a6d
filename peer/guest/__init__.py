"""A volunteer's limits as a contract: what may be used, when, and what happens when that is used up.

`limits` is what the person asked for, `readings` what the system says, `decision` what follows from both (pure);
`watch` looks again and again on the agent's behalf. Nothing here imports torch, hivemind or gRPC.
"""
