"""Processes that share a run: their layout, tensor parallel and sharding, summed gradients."""
