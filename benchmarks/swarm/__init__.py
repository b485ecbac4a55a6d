"""Averaging rounds, slow lines and large swarms, beside hivemind."""
