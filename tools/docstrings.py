"""Docstrings are plain text: their `>>>` examples become blocks of code on the site."""

import re

import griffe


class FencedExamples(griffe.Extension):
    """Puts a fence around each example, from `>>>` to the next empty line."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Change the docstring of every object that is read."""
        if obj.docstring:
            obj.docstring.value = re.sub(
                r"^>>> .*(?:\n.+)*", r"```pycon\n\g<0>\n```", obj.docstring.value, flags=re.M
            )
