"""Publishing checkpoints: destinations, model cards, export to ONNX, and releases with a demo.

`coordinator.service.parts` starts `publisher`; the web reads `publications`, commands the rest.
"""
