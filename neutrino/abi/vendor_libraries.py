"""Libraries that are never rewritten."""

from __future__ import annotations

VENDOR_LIBRARIES = (
    "libcublas", "libcudnn", "libcufft", "libcusparse", "libcusolver", "libcurand", "libcutensor", "libcudss",
    "libnvjpeg", "libnpp", "libnvrtc", "libnvJitLink", "libnvinfer", "libcuda.so",
)  # fmt: skip
"""How the names of libraries begin whose licence forbids changing them: listed, never rewritten."""
