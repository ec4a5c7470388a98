"""A trained model as a folder that transformers reads without this package."""
