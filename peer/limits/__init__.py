"""A volunteer's limits on time, traffic, memory and disk; energy use; a cloud machine's preemption.

`policy` decides from `limits` and readings, without side effects; `monitor` watches the machine.
The agent imports all these modules, the worker only `usage`, the command line `limits` and `cloud`.
"""
