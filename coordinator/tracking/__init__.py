"""Export of metrics to TensorBoard, Weights & Biases and Trackio, in a process of its own.

The list of parts starts `process`, which alone imports the modules with a tracker's library, and only as configured.
"""
