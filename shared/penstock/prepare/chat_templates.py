"""The chat template of a model, also where it has several.

A model may have named templates: `default`, `tool_use` for conversations with tools, and `rag` for
those with documents, as the transformers library documents them ("Multiple templates"). They become
one, which takes the branch that fits what it is given.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.formats.small_file import read_small
from penstock.prepare.inputs import MAX_JSON_BYTES, NAMED_TEMPLATES, TEMPLATE

DEFAULT = "default"
KEY = "tokenizer.chat_template"
"""Key of a GGUF file's chat template."""
_BRANCHES = (("tool_use", "tools"), ("rag", "documents"))
"""Names of templates, and the variables that they are for."""


def template_of_folder(path: Path, tokenizer_config: Fields, separate: Fields) -> str:
    """Files of their own come before the tokenizer's settings; "" if there is none. separate: the
    contents of chat_template.json.  Raises UnsupportedModel."""
    files = {DEFAULT: TEMPLATE, **NAMED_TEMPLATES}
    own = {name: _read(path / file) for name, file in files.items()}
    source = separate if "chat_template" in separate else tokenizer_config
    value: Any = source.values.get("chat_template")
    if isinstance(value, list):
        value = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
    elif value is not None:
        value = {DEFAULT: value}
    if own[DEFAULT] is not None:
        value = {}
    templates = {**(value or {}), **{name: text for name, text in own.items() if text is not None}}
    if not all(isinstance(template, str) for template in templates.values()):
        raise source.wrong("chat_template", "a text, or a list of named texts")
    if len(templates) > 1 and DEFAULT not in templates:
        raise source.wrong("chat_template", f"a list with a template that is named '{DEFAULT}'")
    return one_template(templates)


def with_bos(template: str) -> str:
    """A template that writes BOS first, of models whose processor puts it in front of what the
    template gives; "" stays."""
    return template if not template or "bos_token" in template else "{{ bos_token }}" + template


def template_of_gguf(fields: Fields) -> str:
    """ "" if there is none. Raises UnsupportedModel."""
    names = set(fields.listed(f"{KEY}s", str)) if f"{KEY}s" in fields else set()
    templates = {name: fields.text(f"{KEY}.{name}") for name in names}
    if KEY in fields:
        templates[DEFAULT] = fields.text(KEY)
    if len(templates) > 1 and DEFAULT not in templates:
        raise fields.wrong(f"{KEY}s", f"a name '{DEFAULT}' among them, or a {KEY},")
    return one_template(templates)


def one_template(templates: dict[str, str]) -> str:
    """Named templates as one; "" if there is none. Of others than those that are known the default
    alone counts, or the only one."""
    default = templates.get(DEFAULT)
    if default is None:
        return next(iter(templates.values()), "")
    branches = [(templates[name], given) for name, given in _BRANCHES if name in templates]
    if not branches:
        return default
    # The line break after a mark isn't part of what it holds, and neither is a template's last.
    # What is empty stands before each mark: blanks of a template's last line would be the mark's.
    marks = [f"{'elif' if place else 'if'} {given}" for place, (_, given) in enumerate(branches)]
    texts = [text.removesuffix("\n") for text in (*(text for text, _ in branches), default)]
    filled = [
        f"{{% {mark} %}}\n{text}{{{{ '' }}}}"
        for mark, text in zip([*marks, "else"], texts, strict=True)
    ]
    return "".join(filled) + "{% endif %}"


def _read(path: Path) -> str | None:
    try:
        return read_small(path, MAX_JSON_BYTES).decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UnsupportedModel(f"{path} can't be read: {error}") from None
