"""Rehearsal of a run: a simulation of a whole swarm in virtual time, with real decision code.

Decisions are made by the code of real peers: `peer.swarm` (`view`, `credit`, `decision`, `refresh`)
and `peer.averaging` (`shares`, `absences`, `bandwidth`, `rounds`). Computation, connections, DHT
delays, meetings and crashes are modelled. `scenario` describes the participants, `population`
draws scenarios from published figures, and `swarm` runs them. `forecast` produces figures, plots
and run files for operators.
"""
