"""The contract of softmaxd in Python: generated stubs (`v1`) and the codec that spares a tensor's bytes a copy."""

__version__ = "0.1.0"
