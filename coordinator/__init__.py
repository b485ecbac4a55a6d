"""The operator's side: membership, ledger, checkpoints and the dashboard."""
