"""Load tests of the service and its pages with many volunteers or viewers."""
