"""The agent: the process that a volunteer starts. It joins the run, starts workers, shows progress.

The command line imports `agent`, `options`, `terminal` and `notebook`. Nothing here imports torch
or hivemind: workers are separate processes, which `worker_process` spawns.
"""
