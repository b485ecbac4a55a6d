"""Export of metrics to TensorBoard, Weights & Biases and Trackio, in a process of its own.

The list of parts starts `process`. Only `process` imports a tracker's library.
"""
