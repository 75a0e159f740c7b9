"""The whole decision as one ONNX file, with a JSON beside it that proves a copy right.

`verify` needs NumPy and ONNX Runtime alone and runs as a script, so nothing is imported here.
"""
