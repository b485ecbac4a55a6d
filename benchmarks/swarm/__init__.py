"""Averaging rounds, slow connections and large swarms, compared with hivemind."""
