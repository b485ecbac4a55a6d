"""A rehearsal of a run: a swarm in virtual time, with the product's own decisions.

Real are the decisions of peers: `peer.swarm.view`, `peer.swarm.credit`, `peer.swarm.decision`, `peer.swarm.refresh`,
`peer.averaging.shares`, `peer.averaging.absences`, `peer.averaging.bandwidth` and `peer.averaging.rounds`. Modelled are
computation, lines, the DHT's delay, the gathering of groups, and deaths. `scenario` says who takes part on which line
and when, `population` draws such a scenario from published figures, `swarm` runs it. `forecast` makes figures, pictures
and run files of rehearsals for operators.
"""
