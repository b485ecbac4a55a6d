"""Training: the worker's process, its loop, and its first state.

The agent spawns `worker`, which imports the others. Nothing else is imported from here.
"""
