"""`manyhands doctor`: examines machine and network in stages before a person joins, without an account.

A stage is a function `check(context) -> Outcome`. `checkup` runs them in order; `training_helper` and `swarm_helper`
are processes of their own. Only the command line and the agent import this package.
"""
