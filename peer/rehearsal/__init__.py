"""Rehearsal of a run: a simulation of a whole swarm in virtual time, with the product's own decisions.

The decisions are the product's code: `peer.swarm` (`view`, `credit`, `decision`, `refresh`) and
`peer.averaging` (`shares`, `absences`, `bandwidth`, `rounds`). Computation, connections, DHT
delays, matchmaking and crashes are modelled. `scenario` describes the participants, `population`
draws scenarios from published figures, and `swarm` runs them. `forecast` turns rehearsals into
figures, pictures and run files for operators.
"""
