"""The installer inside a run's wheel; it runs from the wheel, before anything is installed."""
