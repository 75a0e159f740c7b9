"""A policy outside Python's training process: one ONNX file, or a server."""
