"""The service: one process for control plane and web, and a supervisor for keeper and other parts.

The command line imports `supervisor`, `demo`, `demo_report` and `doctor`; `parts` lists the processes.
"""
