"""The Triton code: imported only when a kernel serves."""
