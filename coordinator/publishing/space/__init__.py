"""The page of a released model's demo; it is copied to the hub, not imported."""
