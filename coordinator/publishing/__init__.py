"""Publication of checkpoints: destinations, model cards, ONNX export, and releases with a demo.

`coordinator.service.parts` runs `publisher`; the web server imports `publications`.
"""
