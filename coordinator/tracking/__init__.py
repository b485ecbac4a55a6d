"""Export of metrics to TensorBoard, Weights & Biases and Trackio, in a separate process.

`coordinator.service.parts` starts `process`, which imports only the libraries of configured sinks.
"""
