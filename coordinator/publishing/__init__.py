"""Publication of checkpoints: destinations, model cards, ONNX export, and releases with a demo.

`coordinator.service.parts` starts `publisher`; the web server reads `publications`.
"""
