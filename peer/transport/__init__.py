"""Streams of messages between peers: over hivemind's p2p daemon, or in memory on a virtual clock.

`transport` defines the interface, `p2p` and `memory` implement it. In memory, `lines` models the
peers' connections, and `virtual_time` is the event loop.
"""
