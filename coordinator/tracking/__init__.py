"""Export of metrics to TensorBoard, Weights & Biases and Trackio, in a process of its own.

`coordinator.service.parts` starts `process`, which imports only the libraries of its sinks.
"""
