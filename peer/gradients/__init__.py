"""One peer's gradients: their sums, and the encodings in which groups average them.

`buffer` holds the sums on the trainer's side; `gradient_codes`, `power_sgd` and `error_feedback` are
the encodings, whose remainders `remainders` keeps between sessions.
"""
