"""The agent: the process that a volunteer starts to join a run, supervise workers and show progress.

The command line imports `agent`, `options`, `terminal` and `notebook`. Nothing here imports torch
or hivemind; only the processes spawned by `worker_process` need them.
"""
