"""Export of a run's curves to TensorBoard, Weights & Biases and Trackio, by a separate process.

`coordinator.service.parts` runs `process`, which imports only the libraries of configured sinks.
"""
