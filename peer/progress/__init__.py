"""The swarm's progress as one peer sees it, from signed records, and the decisions that follow from it.

`tracker` holds it all together. `view`, `credit` and `decision` are pure.
"""
