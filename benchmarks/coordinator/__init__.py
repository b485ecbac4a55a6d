"""Load on the service and its pages from a crowd of volunteers or viewers."""
