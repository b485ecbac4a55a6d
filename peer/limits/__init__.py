"""A volunteer's limits: hours, politeness, traffic, memory, disk, energy, and a cloud machine's notice of its end.

`policy` decides from `limits` and readings, without side effects; `monitor` watches the machine. The agent imports
these modules, the worker `usage` alone, the command line `limits` and `cloud`.
"""
