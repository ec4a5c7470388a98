"""One run on many processes: torch.distributed's own engine, arranged for these models."""
