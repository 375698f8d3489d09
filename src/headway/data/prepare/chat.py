"""Renders conversations with the tokenizer's own chat template, and finds the answers in the text.

A template that marks answers itself (`{% generation %}`) is trusted. For any other, an answer is
what an assistant message adds to the prompt that asks for it: it includes the end-of-turn token,
but not the header that the prompt already contains. This requires a template that only appends; one
that rewrites earlier turns is refused.

Encode `RenderedChat.text` with `add_special_tokens=False` (the template writes them), with
`encode_special_tokens` off, and with offsets (`encode_batch`, not `encode_batch_fast`).

A template is code of unknown origin: it runs in Jinja's sandbox, sees plain text only, and has
neither a clock nor randomness, so a set prepared tomorrow is the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from jinja2 import TemplateError, TemplateSyntaxError, Undefined, nodes
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from headway.data.tokenizer import (
    COMPANIONS,
    CONFIG_JSON,
    TEMPLATE_JINJA,
    TOKENIZER_JSON,
    TokenizerFiles,
)
from headway.errors import BadInput

# Names in the template's context, and their values while answers are tracked: halves of surrogate
# pairs, which no message may contain.
_BEGIN, _END = "_headway_begin", "_headway_end"
_MARKS = {_BEGIN: "\ud800", _END: "\udfff"}
_SPLIT = re.compile("([\ud800\udfff])")

_SURROGATE = re.compile("[\ud800-\udfff]")
_SHAREGPT = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}
_INSTEAD = "use a chat template with generation tags, or transform the conversations to text"


class BadConversation(ValueError):
    """This conversation cannot be rendered; others may be."""


@dataclass(frozen=True)
class RenderedChat:
    text: str
    answers: tuple[tuple[int, int], ...]
    """Character ranges that count for the loss: ascending, disjoint, non-empty."""


class ChatTemplate:
    """Renders conversations. Stateless; compiled once, and again in each process it is sent to.

    `variables` are tokens by role (`bos_token`); a message must not spell a special token.
    """

    def __init__(
        self, source: str, variables: Mapping[str, str], special_tokens: Sequence[str], where: str
    ) -> None:
        self._arguments = (source, variables, special_tokens, where)
        self._variables, self._special, self._where = variables, tuple(special_tokens), where
        longest_first = sorted(map(re.escape, special_tokens), key=len, reverse=True)
        self._spelled = re.compile("|".join(longest_first) or "(?!)")
        environment = _environment()
        try:
            tree = environment.parse(source)
            # Before compiling, which may fold constants away.
            self._is_marked = any(name.name == _BEGIN for name in tree.find_all(nodes.Name))
            self._reads = {get.attr for get in tree.find_all(nodes.Getattr)}
            constants = (constant.value for constant in tree.find_all(nodes.Const))
            self._reads |= {value for value in constants if isinstance(value, str)}
            self._template = environment.from_string(tree)
        except TemplateSyntaxError as error:
            raise BadInput(
                f"the chat template of {where}: line {error.lineno}: {error.message}",
                "give a tokenizer whose template transformers can use",
            ) from None
        self._check_shows_text()

    @classmethod
    def load(cls, folder: Path, called: str) -> ChatTemplate:
        """The default template in a tokenizer's folder, from any place where transformers looks for
        it. Errors refer to it as `called`: the folder may be temporary."""
        config = _fields(folder / CONFIG_JSON, called)
        companions = {name: folder / name for name in COMPANIONS if (folder / name).is_file()}
        tokens = {role: token for role, token in config.items() if role.endswith("_token")}
        variables = {role: token for role, token in tokens.items() if isinstance(token, str)}
        variables |= TokenizerFiles(companions).roles()
        if not (folder / TOKENIZER_JSON).is_file():
            raise BadInput(f"{called} has no {TOKENIZER_JSON}", "give a fast tokenizer's folder")
        special = {
            token["content"]
            for token in _fields(folder / TOKENIZER_JSON, called).get("added_tokens", ())
            # A token with a role steers the model, whether or not the file calls it special.
            if token.get("special") or token["content"] in variables.values()
        }
        return cls(_source(folder, config, called), variables, sorted(special), called)

    def __reduce__(self) -> tuple[Any, ...]:
        return ChatTemplate, self._arguments

    def render(self, messages: Any) -> RenderedChat:
        """The conversation as the template renders it; BadConversation says why it cannot.

        A message is {"role": ..., "content": ...} or ShareGPT's {"from": ..., "value": ...}.
        Content is text, or a list of {"type": "text", "text": ...}, which are joined. Other keys
        that the template reads may hold text; keys that it does not read are left out.
        """
        if not isinstance(messages, list):
            raise BadConversation(f"expected a list of messages, not {type(messages).__name__}")
        if not messages:
            raise BadConversation("there are no messages")
        plain = [self._message(number, message) for number, message in enumerate(messages, 1)]
        if not any(message["role"] == "assistant" for message in plain):
            raise BadConversation("no message is an answer (role `assistant`)")
        text = self._text(plain)
        ranges = self._marked(plain, text) if self._is_marked else self._added(plain, text)
        answers = tuple((begin, end) for begin, end in ranges if begin < end)
        if not answers:
            raise BadConversation("the chat template drops the answers")
        return RenderedChat(text, answers)

    def _message(self, number: int, message: Any) -> dict[str, str]:
        """The message with plain text only, and only the keys that the template reads."""
        if not isinstance(message, dict):
            raise BadConversation(f"message {number} is not an object with role and content")
        if "role" in message or "from" not in message:
            role, content = message.get("role"), message.get("content")
        else:
            role, content = message["from"], message.get("value")
            if role not in (*_SHAREGPT, "system"):
                raise BadConversation(
                    f"message {number} is from `{role}`, not human, gpt or system"
                )
            role = _SHAREGPT.get(role, role)
        if not isinstance(role, str) or not role:
            raise BadConversation(f"message {number} has no role")
        # As in transformers: templates read a model's reasoning under the first two names.
        names = ("reasoning_content", "thinking", "reasoning")
        if reasoning := next((message[name] for name in names if message.get(name)), None):
            message = dict.fromkeys(names[:2], reasoning) | {k: v for k, v in message.items() if v}
        fields = {"role": role, "content": _joined(number, content)}
        for key, value in message.items():
            if key not in self._reads or key in ("role", "content", "from", "value"):
                continue
            if isinstance(value, str):
                fields[key] = value
            elif value:  # empty values are columns that other messages need
                raise BadConversation(
                    f"message {number} has `{key}` that is not text: transform it"
                )
        for text in fields.values():
            if _SURROGATE.search(text):
                raise BadConversation(f"message {number} contains half a surrogate pair")
            if spelled := self._spelled.search(text):
                token = spelled.group()
                raise BadConversation(f"message {number} spells the special token {token}")
        return fields

    def _text(
        self, messages: list[dict[str, str]], ask: bool = False, marks: Mapping[str, str] = {}
    ) -> str:
        given = {"messages": messages, "tools": None, "documents": None, **self._variables, **marks}
        try:
            return self._template.render(given, add_generation_prompt=ask)
        except SecurityError as error:
            raise BadInput(
                f"the chat template of {self._where} does something forbidden: {error}",
                "do not use this tokenizer before you know why",
            ) from None
        except _Unrepeatable as error:
            raise BadInput(
                f"the chat template of {self._where} {error}, so its text changes from day to day",
                "write a fixed date into the template, or transform the conversations to text",
            ) from None
        except MemoryError:  # the machine's fault, not the conversation's
            raise
        except Exception as error:  # noqa: BLE001 - a template can raise anything
            kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            raise BadConversation(f"the chat template refuses it: {kind}{error}") from None

    def _added(self, messages: list[dict[str, str]], text: str) -> list[tuple[int, int]]:
        """For each answer, what it adds to the prompt that asks for it."""
        ranges = []
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            try:
                asked = self._text(messages[:index], ask=True)
                is_last = index + 1 == len(messages)
                answered = text if is_last else self._text(messages[: index + 1])
            except BadConversation as error:
                raise BadConversation(
                    f"message {index + 1}: cut there, {error}; {_INSTEAD}"
                ) from None
            if not (text.startswith(answered) and answered.startswith(asked)):
                raise BadConversation(
                    f"message {index + 1}: this answer cannot be separated from the rest: the "
                    f"chat template does not just append it to the prompt; {_INSTEAD}"
                )
            # The model is not asked for what follows its end-of-turn token: a template's newline.
            bare = answered.rstrip()
            ends_turn = len(bare) > len(asked) and bare.endswith(self._special)
            ranges.append((len(asked), len(bare if ends_turn else answered)))
        return ranges

    def _marked(self, messages: list[dict[str, str]], text: str) -> list[tuple[int, int]]:
        """The template's own generation blocks."""
        pieces = _SPLIT.split(self._text(messages, marks=_MARKS))
        marks = pieces[1::2]
        # A template that filters its blocks (`trim`) would render differently with the marks.
        if marks != list(_MARKS.values()) * (len(marks) // 2) or "".join(pieces[::2]) != text:
            raise BadInput(
                f"the chat template of {self._where} nests, leaves or alters a generation block",
                "write the blocks around the answers' final text",
            )
        borders = np.cumsum([len(piece) for piece in pieces[::2]]).tolist()
        return list(zip(borders[0:-1:2], borders[1::2], strict=True))

    def _check_shows_text(self) -> None:
        """Refuses a template that only handles lists of parts (images), before any conversation."""
        words = {"user": "a question of headway", "assistant": "an answer to headway"}
        try:
            shown = self._text([{"role": role, "content": text} for role, text in words.items()])
        except BadConversation:  # it requires a different kind of conversation
            return
        if not all(text in shown for text in words.values()):
            raise BadInput(
                f"the chat template of {self._where} leaves out a message's text",
                "use one made for text, not for images, or transform the conversations to text",
            )


def token_mask(
    offsets: Sequence[tuple[int, int]], answers: Sequence[tuple[int, int]]
) -> np.ndarray:
    """One uint8 per token: 1 counts for the loss.

    A token that straddles a boundary counts, as in transformers: otherwise the first or last word
    of an answer would never be learned, while learning a piece of a header does no harm. It also
    keeps an end-of-turn token that absorbs the whitespace after it.

    A token with an empty range counts as the character before it: byte-level tokenizers that trim
    offsets leave nothing of a token that consists of spaces, such as an indentation.
    """
    spans = np.array(offsets, dtype=np.int64).reshape(-1, 2)
    ranges = np.array(answers, dtype=np.int64).reshape(-1, 2)
    begins, ends = spans[:, 0], spans[:, 1]
    assert len(ranges) == 0 or ends.max(initial=0) > 0, "encode_batch_fast gives no offsets"
    begins = np.where(begins == ends, ends - 1, begins)
    # Only the first answer that ends after a token's start can be the first to overlap it.
    first = np.searchsorted(ranges[:, 1], begins, side="right")
    nowhere = np.iinfo(np.int64).max
    return (np.append(ranges[:, 0], nowhere)[first] < ends).astype(np.uint8)


class _Unrepeatable(TemplateRuntimeError):
    """The template asked for the date or for randomness."""


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}`: its body, between two variables."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        begin, end = (nodes.Output([nodes.Name(name, "load")]) for name in (_BEGIN, _END))
        # A scope: in transformers too, variables set inside are not visible outside.
        return [node.set_lineno(line) for node in (begin, nodes.Scope(body), end)]


class _Sandbox(ImmutableSandboxedEnvironment):
    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        # Jinja would continue with an undefined value, and print nothing.
        raise SecurityError(f"it reads `{attribute}` of a {type(obj).__name__}")


class _Namespace(Namespace):
    def __getattribute__(self, name: str) -> Any:
        # Jinja looks up `__call__` and `__html__` on objects: templates must not define them.
        if name.startswith("_") and name not in ("_Namespace__attrs", "__class__"):
            raise AttributeError(name)
        return super().__getattribute__(name)


def _environment() -> _Sandbox:
    """The environment of transformers, without anything that would make two preparations differ."""
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    del environment.filters["random"]
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["namespace"] = _Namespace
    environment.globals["dict"] = lambda *pairs, **items: dict(*pairs, **items)  # not the type
    # Undefined, so that a template that checks (`strftime_now is defined`) falls back to its fixed
    # date; calling them raises.
    for name in ("strftime_now", "lipsum"):
        environment.globals[name] = Undefined(f"calls {name}", name=name, exc=_Unrepeatable)
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
    """Replaces Jinja's own filter, which escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **layout)


def _joined(number: int, content: Any) -> str:
    """The text of a content. Parts are joined: templates for text would print the list itself."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [
        part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"
    ]
    plain = [text for text in texts if isinstance(text, str)]
    if len(plain) < len(parts):
        raise BadConversation(f"the content of message {number} is not text")
    return "".join(plain)


def _source(folder: Path, config: Mapping[str, Any], called: str) -> str:
    if (folder / TEMPLATE_JINJA).is_file():
        return (folder / TEMPLATE_JINJA).read_text(encoding="utf-8")
    found = config.get("chat_template")
    named = ""
    if isinstance(found, list):
        found = {entry.get("name"): entry.get("template") for entry in found}.get("default")
        named = " called `default`"
    if not isinstance(found, str):
        raise BadInput(
            f"{called} has no chat template{named}",
            "use a built-in one: tokenizer: {from: ..., chat_template: zephyr}; "
            "for headway data prepare: --chat-template zephyr",
        )
    return found


def _fields(path: Path, called: str) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise BadInput(
            f"{path.name} of {called} is not valid JSON: {error}", "save the tokenizer again"
        ) from None
    return fields if isinstance(fields, dict) else {}
