"""Authorization within the swarm: signed DHT requests and records, and calls that only admitted peers may make.

`authorizer` guards the DHT, `directory` knows the admitted peers, `access` guards averagers; `hivemind_patches` mends
hivemind. Only processes with a node of the swarm, and the doctor's helper, import these modules: they import hivemind.
"""
