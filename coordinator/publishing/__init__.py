"""Publishing of checkpoints: places, model card, ONNX, release with a demo.

`coordinator.service.parts` starts `publisher`; commands import the rest; web reads `publications`.
"""
