"""The agent: the process that a volunteer starts. It joins the run, starts workers and shows their progress.

The command line imports `agent`, `options`, `terminal` and `notebook`. Nothing here imports torch or hivemind: workers
are processes of their own, which `worker_process` spawns.
"""
