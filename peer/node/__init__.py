"""Objects of a peer's swarm node, which exchange messages with other peers' processes."""
