"""Checkpoints that are complete or absent: store.py has their form, saver.py writes them."""
