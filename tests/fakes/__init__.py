"""Fake GPUs: NVIDIA's tools and libraries, driven by one scenario file. See README.md."""
