"""Evaluation of checkpoints on downstream tasks, by the operator or by evaluators on other machines.

The commands use `evaluator` and `evaluated_runs`; the web server and publisher use `evaluations`.
"""
