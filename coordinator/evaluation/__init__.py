"""Evaluation of checkpoints on downstream tasks, by the operator or by evaluators elsewhere.

The command line imports `evaluator`; web and publishing read results by `evaluations`.
"""
