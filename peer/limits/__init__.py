"""A volunteer's limits on time, traffic, memory and disk; energy use; preemption of cloud machines.

`monitor` reads the machine; `policy` decides, by these readings and the `limits`, whether to train.
The worker imports only `usage`, and the command line `limits` and `cloud`.
"""
