"""A document as text in a terminal, Markdown, HTML or a picture."""
