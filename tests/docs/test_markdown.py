# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The reader of the documentation reads what there is."""

from __future__ import annotations

from tests.docs import markdown
from tests.tools.command import ROOT

PAGE = """\
# A `title`, with [a link](b.md) # not code

<!-- needs GPUs -->
```shell
# first comment
one --option  # behind
A=1 two \\
  three

# needs COCO
four
```

## Twice
text [x](c.md#twice-1) and `[no](d.md)` <img src="e.png">
[ref]: g.md
[^1]: footnote

## Twice

```console
$ five
output
```

~~~python
a = 1  # [no](f.md)
~~~
"""


def test_blocks_commands_links_and_anchors(tmp_path, monkeypatch):
    monkeypatch.setattr(markdown, 'ROOT', tmp_path)
    page = tmp_path / 'page.md'
    page.write_text(PAGE)
    shell, console, python = markdown.blocks(page)
    assert (shell.line, shell.mark) == (5, 'needs GPUs')
    assert [b.language for b in (console, python)] == ['console', 'python']
    assert (console.mark, python.text) == ('', 'a = 1  # [no](f.md)')
    assert [tuple(c) for c in markdown.commands(shell)] == [
        ('page.md:6', 'one --option', 'needs GPUs first comment behind'),
        ('page.md:7', 'A=1 two three', 'needs GPUs'),
        ('page.md:11', 'four', 'needs GPUs needs COCO'),
    ]
    assert [c.text for c in markdown.commands(console)] == ['five']
    assert [link.target for link in markdown.links(page)] == [
        'b.md', 'c.md#twice-1', 'e.png', 'g.md',
    ]  # fmt: skip
    assert markdown.anchors(page) == {
        'a-title-with-a-link--not-code', 'twice', 'twice-1',
    }  # fmt: skip


def test_all_pages_are_read():
    names = {str(page.relative_to(ROOT)) for page in markdown.PAGES}
    assert {'README.md', 'docs/README.md', 'docs/recipe.md'} <= names
