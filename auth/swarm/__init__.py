"""Authorization within the swarm: signed DHT records, and RPCs restricted to admitted peers.

`authorizer` controls access to the DHT, `directory` lists the admitted peers, `access` restricts
the averager, and `hivemind_patches` fixes hivemind. All of them import hivemind, so they are imported
only by processes with a swarm node and by the doctor's helper process.
"""
