"""The service, one process for control plane and web, and the supervisor of all processes of a run.

Commands import `supervisor`, `demo`, `demo_report` and `doctor`; `parts` lists the processes.
"""
