"""`manyhands doctor`: staged checks of the machine and network before joining; needs no account.

`checkup` lists the stages; `swarm_helper` and `training_helper` run in the process of `helper`. The
command line uses this package; the operator's doctor (`coordinator.service`) uses `stages`.
"""
