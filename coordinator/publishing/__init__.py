"""Publishing of checkpoints: places, model card, ONNX, release with a demo.

The list of parts starts `publisher`; the command line imports `release`, web `publications`.
"""
