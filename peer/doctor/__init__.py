"""`manyhands doctor`: examines machine and network in stages before a person joins, without an account.

`checkup` lists the stages in order; `training_helper` and `swarm_helper` run in a process of their own. The command
lines import this package, and the operator's doctor (`coordinator.service.doctor`) `stages`.
"""
