"""Models, objectives and optimizers; one function builds each for peers, keeper and evaluation.

`build` makes the model from a run's configuration; `optimizer_setup` makes its optimizer, one of
`optimizers`, and its schedule. All processes that compute import from here.
"""
