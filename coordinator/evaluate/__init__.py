"""Is the model any good? Downstream tasks, held-out text and bias probes on checkpoints.

`worker` and what it imports (tagging, classifying, answering, filling, probing) compute, in a process of their own;
everything else is light: configuration, loaders, results, tables.
"""
