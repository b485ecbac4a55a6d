"""`manyhands doctor`: checks of machine and network in stages, before joining, without an account.

`checkup` lists the stages in order; the two helpers run in a separate process. The command line
imports this package; the operator's doctor (`coordinator.service.doctor`) imports `stages`.
"""
