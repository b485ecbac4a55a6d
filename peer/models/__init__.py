"""Models, objectives and optimizers, each built by one function for peers, keeper and evaluation.

`build` creates the model from a run's configuration. `optimizer_setup` creates its optimizer,
defined in `optimizers`, and its schedule. All computing processes use them.
"""
