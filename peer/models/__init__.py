"""Models, objectives and optimizers, each built by one function for peers, keeper and evaluation.

`build` makes the model from a run's configuration; `optimizer_setup` makes its optimizer, one of `optimizers`, and its
schedule. Everything that computes imports from here.
"""
