"""What training takes and what it reaches, by each way to average."""
