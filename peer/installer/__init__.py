"""The installer in a run's wheel; it runs before anything is installed."""
