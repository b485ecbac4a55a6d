"""A volunteer's limits: hours, power, temperature, traffic, memory, a cloud machine's notice of its end.

`policy` decides from `limits` and readings, without side effects; `monitor` watches and acts. The agent and the
worker import these two, `events` and `usage`.
"""
