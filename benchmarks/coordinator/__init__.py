"""The service and its pages under a crowd."""
