"""The agent: the process that a volunteer starts to join a run, run workers and show progress.

The command line imports `agent`, `options`, `terminal` and `notebook`. Nothing here imports torch
or hivemind, because only the worker processes that `worker_process` spawns need them.
"""
