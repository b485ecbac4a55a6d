"""A volunteer's limits on time, traffic, memory and disk; energy use; preemption of cloud machines.

`policy` makes decisions from `limits` and readings, without side effects; `monitor` reads the
machine. The worker imports only `usage`, and the command line `limits` and `cloud`.
"""
