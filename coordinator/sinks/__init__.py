"""Where a run's curves go beside its own dashboard: TensorBoard, Weights & Biases, trackio, by installed extra."""
