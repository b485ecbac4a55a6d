"""The installer that a run's wheel carries; it is run out of the wheel, before anything is installed."""
