"""The cost of training and the loss that it reaches, by each way to average."""
