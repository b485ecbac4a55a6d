"""One volunteer's machine: the agent that talks to the coordinator and the worker that trains."""
