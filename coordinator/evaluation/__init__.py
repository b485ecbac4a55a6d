"""Evaluation of checkpoints on downstream tasks, by the operator or by evaluators elsewhere.

Commands import `evaluator` and `evaluated_runs`; web and publishing read `evaluations`.
"""
