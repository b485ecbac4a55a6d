"""One peer's gradients: their sums, and the encodings in which groups average them.

`buffer` holds the sums on the trainer's side; `gradient_codes` and `power_sgd` are the encodings.
`remainders` keeps PowerSGD's remainders between sessions.
"""
