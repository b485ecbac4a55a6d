"""The service process (control plane and web), and the supervisor of all processes of a run.

Commands import `supervisor`, `demo`, `demo_report` and `doctor`. `parts` defines the processes.
"""
