"""`manyhands doctor`: examines machine and network in stages before a person joins, without an account.

A stage is a function `check(context) -> Outcome`. `checkup` lists them in order; `training_helper` and `swarm_helper`
are processes of their own. The command lines import this package, and the coordinator's doctor `stages` and `display`.
"""
