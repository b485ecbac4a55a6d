"""Publishing of checkpoints: places, model card, ONNX, release with a demo.

The list of parts starts `publisher`; commands import `release` and the steps of an export, web reads `publications`.
"""
