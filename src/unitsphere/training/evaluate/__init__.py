"""Loss, perplexity and bits per byte of a model on text, pairs and prepared shards."""
