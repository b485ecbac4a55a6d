"""Rounds, lines and growth of a swarm, beside hivemind."""
