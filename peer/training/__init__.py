"""Training: the worker's process, its visible loop, the first state.

The agent spawns `worker`, which imports the others. Nothing else is imported from here.
"""
