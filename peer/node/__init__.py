"""Objects of a peer's averager process, which exchange messages with other peers' processes."""
