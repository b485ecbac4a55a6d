"""Authorization within the swarm: signed DHT records, and calls that only admitted peers may make.

`authorizer` guards the DHT, `directory` lists the admitted peers, `access` guards averagers, and
`hivemind_patches` corrects hivemind. Only processes with a node of the swarm and the doctor's
helper import these modules, because they import hivemind.
"""
