"""Publishing of checkpoints: destinations, model cards, ONNX, and releases with a demo.

`coordinator.service.parts` starts `publisher`; commands import the rest; web reads `publications`.
"""
