"""Who may take part in a run, and how anyone can check it."""
