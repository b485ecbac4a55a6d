"""`manyhands doctor`: checks of machine and network in stages, before joining, without an account.

`checkup` lists the stages; `swarm_helper` and `training_helper` run in `helper`'s process. The
command line imports this package, and the operator's doctor (`coordinator.service`) `stages`.
"""
