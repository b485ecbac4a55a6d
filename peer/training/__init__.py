"""Training: the worker's process, its training loop and its initial state.

The agent spawns `worker`, which imports the other modules. The package has no other users.
"""
