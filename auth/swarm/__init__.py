"""Authorization within the swarm: signed DHT records, and streams restricted to admitted peers.

`authorizer` controls access to the DHT, `directory` lists the admitted peers, and
`hivemind_patches` fixes hivemind. All of them import hivemind, so they are imported only by
processes with a swarm node and by the doctor's helper process.
"""
