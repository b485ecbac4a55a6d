"""Authorization within the swarm: signed DHT records, and RPCs restricted to admitted peers.

`authorizer` controls access to the DHT, `directory` lists the admitted peers, `access` restricts
averagers, and `hivemind_patches` fixes hivemind. All import hivemind, so only processes with a
swarm node and the doctor's helper process import them.
"""
