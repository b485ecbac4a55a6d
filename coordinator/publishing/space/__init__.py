"""The demo page of a released model; it is copied to the hub, not imported."""
