"""Models, objectives and optimizers, each built by one function for peers, keeper and evaluation.

`build` makes model and objective from a run's configuration, `optimizers` LAMB and its schedule. Everything that
computes imports from here.
"""
