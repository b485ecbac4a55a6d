"""Rounds, lines and growth of a swarm, beside plain hivemind and beside rehearsals."""
