"""`manyhands doctor`: examines machine and network stage by stage, before a person joins and without an account.

A stage is one small function, `check(context) -> Outcome`; each group of them has a module:

    machine       disk, memory, processor
    training      device, speed: a spawned helper computes some microbatches
    network       names, tcp, proxy, route
    coordinator   tls, protocol, run, clock
    line          bandwidth, reachability
    swarm         daemon, swarm-tcp, swarm-quic, relay: a spawned helper starts the p2p daemon

`checkup` puts them in order, `verdict` sums them up, `diagnosis` asks them why a join has failed.
"""
