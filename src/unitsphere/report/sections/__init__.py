"""Parts of a page that several kinds share: curves, probes, settings and more."""
