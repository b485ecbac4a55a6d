"""Evaluation of checkpoints on downstream tasks, by the operator or by evaluators elsewhere.

Commands import `evaluator`, `local_run`, `remote_run`; web and publishing read results by `evaluations`.
"""
