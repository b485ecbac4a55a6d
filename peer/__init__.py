"""The software of one volunteer's machine: the agent, and the worker process that trains."""
