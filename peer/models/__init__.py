"""Models, objectives and optimizers, built in the same way for peers, keeper and evaluation.

`build` creates the model from a run's configuration. `optimizer_setup` creates the schedule and the
optimizer, whose class is in `optimizers`.
"""
