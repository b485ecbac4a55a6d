"""Evaluation of checkpoints on downstream tasks, by the operator or by evaluators on other machines.

The commands import `evaluator` and `evaluated_runs`; web and publishing read `evaluations`.
"""
