"""The installer inside a run's wheel, which runs before anything is installed."""
