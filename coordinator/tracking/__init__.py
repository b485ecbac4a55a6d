"""Export of metrics to TensorBoard, Weights & Biases and Trackio, in a process of its own.

The list of parts starts `process`, where a tracker's library is imported only as configured.
"""
