"""Models, objectives and optimizers, each built by one function for peers, keeper and evaluation.

`build` makes the model from a run's configuration; `optimizers` makes its optimizer, by one of `update_rules`, and its
schedule. Everything that computes imports from here.
"""
