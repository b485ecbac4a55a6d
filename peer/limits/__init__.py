"""Volunteers' limits on time, traffic, memory and disk; energy use; preemption of cloud machines.

`monitor` reads the machine's state; `policy` decides from these readings and the `limits` whether
to train. The worker imports only `usage`; the command line imports `limits` and `cloud`.
"""
