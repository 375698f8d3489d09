"""Conversations become the text transformers makes of them, and only answers count."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, processors

from headway.data.prepare.chat import BadConversation, ChatTemplate, RenderedChat, token_mask
from headway.data.tiny_stories import stories
from headway.data.tokenizer import CHAT_TEMPLATES, save_tokenizer, train_tokenizer
from headway.errors import BadInput

CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}"""

# With the date as Llama 3.2 has it, and its default system text.
LLAMA3 = """\
{{- bos_token }}
{%- if strftime_now is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- else %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

LLAMA2 = """\
{% if messages[0]['role'] == 'system' %}
{% set rest = messages[1:] %}
{% set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}
{% else %}{% set rest = messages %}{% set system = '' %}{% endif %}
{% for message in rest %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate user/assistant') }}{% endif %}
{% if loop.first %}{% set content = system + message['content'] %}
{% else %}{% set content = message['content'] %}{% endif %}
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{%- else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}
{% endfor %}"""

# Blocks in a macro, indented tags, loop controls and tojson.
GENERATION = """\
{% macro turn(message) %}
{% if message.role == 'assistant' %}
{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}
{% else %}{{ message.content }}<|im_end|>{% endif %}
{% endmacro %}
{% for message in messages %}
    {% if message.role == 'skipped' %}{% continue %}{% endif %}
<|im_start|>{{ message.role | tojson }}{{ message.content[:3] | tojson }}
{{ turn(message) }}
{% endfor %}"""

# As reasoning models have it: the thinking of earlier answers goes.
THINKING = """\
{% set last = namespace(index=0) %}
{% for message in messages %}
{% if message.role == 'user' %}{% set last.index = loop.index0 %}{% endif %}
{% endfor %}
{% for message in messages %}
{% set content = message.content %}
{% if message.role == 'assistant' and loop.index0 < last.index %}
{% set content = content.split('</think>')[-1].lstrip() %}
{% endif %}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}BEGIN{{ content + '<|im_end|>' }}END
{%- else %}{{ content + '<|im_end|>' }}{% endif %}
{{ '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
THINKING_PLAIN = THINKING.replace("BEGIN", "").replace("END", "")
THINKING_MARKED = THINKING.replace("BEGIN", "{% generation %}").replace(
    "END", "{% endgeneration %}"
)

SPECIAL = (
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
)

Messages = list[dict[str, Any]]
Load = Callable[[str], ChatTemplate]


def talk(*contents: str, system: str | None = None) -> Messages:
    """Questions and answers in turn."""
    roles = ("user", "assistant")
    turns: Messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]
    return turns if system is None else [{"role": "system", "content": system}, *turns]


TALKS = [
    talk("Hi", "Hello!"),
    talk("Once upon a time", "there was  a fox .", "More?", "No\n\nmore", system="Be kind."),
    talk("日本語で 🎉", "はい 🎉\n    if x:\n        y", "ok", "été & <b>'\"</b>"),
    talk("a", "", "b", "c", "no answer to this"),
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    made = train_tokenizer(stories(50_000, 1), 400, "stream")
    made.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL]
    )
    return made


@pytest.fixture
def load(tmp_path: Path, tokenizer: Tokenizer) -> Load:
    def made(source: str) -> ChatTemplate:
        save_tokenizer(tokenizer, {"bos_token": "<s>", "eos_token": "</s>"}, tmp_path)
        (tmp_path / "chat_template.jinja").write_text(source)
        return ChatTemplate.load(tmp_path, "the tokenizer of a test")

    return made


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Callable[..., Any]:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("theirs")
    save_tokenizer(tokenizer, {"bos_token": "<s>", "eos_token": "</s>"}, folder)
    return transformers.AutoTokenizer.from_pretrained(folder).apply_chat_template


def answers_of(rendered: RenderedChat) -> list[str]:
    return [rendered.text[begin:end] for begin, end in rendered.answers]


def counted(tokenizer: Tokenizer, rendered: RenderedChat) -> str:
    """What the tokens that count spell."""
    encoding = tokenizer.encode(rendered.text, add_special_tokens=False)
    mask = token_mask(encoding.offsets, rendered.answers)
    assert mask.dtype == np.uint8
    assert len(mask) == len(encoding.ids)
    ids = [number for number, counts in zip(encoding.ids, mask, strict=True) if counts]
    return tokenizer.decode(ids, skip_special_tokens=False)


STYLES = {
    "chatml": CHATML,
    "llama2": LLAMA2,
    "generation": GENERATION,
    "thinking": THINKING_MARKED,
    **CHAT_TEMPLATES,
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("messages", TALKS)
def test_the_text_is_what_transformers_makes(
    style: str, messages: Messages, load: Load, theirs: Callable[..., Any]
) -> None:
    rendered = load(STYLES[style]).render(messages)
    assert rendered.text == theirs(messages, chat_template=STYLES[style], tokenize=False)


@pytest.mark.parametrize("messages", TALKS)
def test_the_text_is_what_transformers_makes_but_for_the_day(
    messages: Messages, load: Load, theirs: Callable[..., Any]
) -> None:
    fixed = LLAMA3.replace("strftime_now is defined", "false")
    text = load(LLAMA3).render(messages).text
    assert text == theirs(messages, chat_template=fixed, tokenize=False)
    assert "Today Date: 26 Jul 2024" in text


@pytest.mark.parametrize(
    ("template", "end"),
    [(CHATML, "<|im_end|>"), (LLAMA3, "<|eot_id|>"), (CHAT_TEMPLATES["zephyr"], "</s>")],
)
@pytest.mark.parametrize("messages", TALKS)
def test_the_tokens_that_count_spell_the_answers_and_their_ends(
    template: str, end: str, messages: Messages, load: Load, tokenizer: Tokenizer
) -> None:
    rendered = load(template).render(messages)
    answers = [m["content"] + end for m in messages if m["role"] == "assistant"]
    assert answers_of(rendered) == answers
    assert counted(tokenizer, rendered) == "".join(answers)


@pytest.mark.parametrize("messages", TALKS)
def test_an_answer_without_a_header_of_its_own(
    messages: Messages, load: Load, tokenizer: Tokenizer
) -> None:
    rendered = load(LLAMA2).render(messages)
    answers = [f" {m['content']} </s>" for m in messages if m["role"] == "assistant"]
    assert answers_of(rendered) == answers
    assert counted(tokenizer, rendered) == "".join(answers)


@pytest.mark.parametrize("template", [GENERATION, THINKING_MARKED])
@pytest.mark.parametrize("messages", TALKS)
def test_generation_tags_are_trusted(
    template: str, messages: Messages, load: Load, tokenizer: Tokenizer
) -> None:
    rendered = load(template).render(messages)
    answers = [m["content"] + "<|im_end|>" for m in messages if m["role"] == "assistant"]
    assert answers_of(rendered) == answers
    assert counted(tokenizer, rendered) == "".join(answers)


@pytest.mark.parametrize("messages", TALKS)
def test_generation_tags_give_the_mask_of_transformers(
    messages: Messages, load: Load, theirs: Callable[..., Any], tokenizer: Tokenizer
) -> None:
    rendered = load(THINKING_MARKED).render(messages)
    encoding = tokenizer.encode(rendered.text, add_special_tokens=False)
    expected = theirs(
        messages,
        chat_template=THINKING_MARKED,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    assert encoding.ids == expected["input_ids"]
    mask = token_mask(encoding.offsets, rendered.answers)
    assert mask.tolist() == expected["assistant_masks"]


def test_a_template_that_removes_earlier_thinking(load: Load) -> None:
    once = talk("2+2?", "<think>easy</think>4")
    twice = [*once, *talk("3+3?", "<think>hm</think>6")]
    plain, marked = load(THINKING_PLAIN), load(THINKING_MARKED)
    assert answers_of(plain.render(once)) == ["<think>easy</think>4<|im_end|>"]
    with pytest.raises(BadConversation, match=r"message 2: .*generation tags, or transform"):
        plain.render(twice)
    assert answers_of(marked.render(twice)) == ["4<|im_end|>", "<think>hm</think>6<|im_end|>"]


def test_a_template_whose_prompt_does_not_begin_the_answer(load: Load) -> None:
    template = load(CHATML.replace("assistant\\n' }}", "assistant\\n<think>\\n' }}"))
    with pytest.raises(BadConversation, match=r"message 2: .*does not just append"):
        template.render(talk("Hi", "Hello"))


def test_a_template_that_refuses_parts_of_a_conversation(load: Load) -> None:
    only_whole = "{% if messages | length < 4 %}{{ raise_exception('too short') }}{% endif %}"
    template = load(only_whole + CHATML)
    with pytest.raises(BadConversation, match=r"message 2: cut there, .*too short; use a chat"):
        template.render(talk("a", "b", "c", "d"))
    with pytest.raises(BadConversation, match="refuses it: too short"):
        template.render(talk("a", "b"))
    with pytest.raises(BadConversation, match="must alternate"):
        load(LLAMA2).render([*talk("a", "b"), *talk("c")[:0], {"role": "system", "content": "x"}])


def test_a_header_the_prompt_lacks_must_be_learned(load: Load) -> None:
    """Without a generation prompt the model itself writes the header."""
    template = load(CHATML[: CHATML.index("{% if add_generation_prompt")])
    assert answers_of(template.render(talk("a", "b"))) == ["<|im_start|>assistant\nb<|im_end|>"]


def test_white_space_counts_where_no_token_ends_the_turn(load: Load) -> None:
    """The blank line is all that tells the model's end of turn."""
    turns = "{% for m in messages %}{{ '# ' + m.role + '\\n' + m.content + '\\n\\n' }}{% endfor %}"
    template = load(turns + "{% if add_generation_prompt %}{{ '# assistant\\n' }}{% endif %}")
    assert answers_of(template.render(talk("a", "b", "c", "d"))) == ["b\n\n", "d\n\n"]


def test_the_forms_of_a_message(load: Load) -> None:
    template = load(CHATML)
    expected = template.render(talk("How are you?", "Fine.", system="Be kind."))
    parts = [{"type": "text", "text": "How are "}, {"type": "text", "text": "you?"}]
    listed = talk("", "Fine.", system="Be kind.")
    listed[1]["content"] = parts
    assert template.render(listed) == expected
    shared = [
        {"from": "system", "value": "Be kind."},
        {"from": "human", "value": "How are you?", "weight": None},
        {"from": "gpt", "value": "Fine.", "views": ["x"]},
    ]
    assert template.render(shared) == expected


USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ("Hi", "expected a list of messages, not str"),
        (None, "not NoneType"),
        ({"role": "user", "content": "Hi"}, "not dict"),
        ([], "no messages"),
        ([USER], "no message is an answer"),
        ([USER, "Hello"], "message 2 is not an object"),
        ([USER, {"content": "Hello"}], "message 2 has no role"),
        ([{"role": None, "content": "x"}], "message 1 has no role"),
        ([USER, {"role": "assistant"}], "content of message 2 is not text"),
        ([USER, {"role": "assistant", "content": None}], "content of message 2 is not text"),
        ([USER, {"role": "assistant", "content": 4}], "content of message 2 is not text"),
        ([USER, {"role": "assistant", "content": ["Hello"]}], "content of message 2 is not text"),
        (
            [{"role": "user", "content": [{"type": "image", "text": "x"}]}],
            "content of message 1 is not text",
        ),
        ([USER, {"role": "assistant", "content": [{"type": "text"}]}], "of message 2 is not text"),
        ([{"from": "bing", "value": "x"}], "message 1 is from `bing`"),
        ([{"from": [1], "value": "x"}], "message 1 is from"),
        ([{"from": "human", "content": "x"}], "content of message 1 is not text"),
        (talk("Hi", "half \ud83d"), "message 2 contains half a surrogate pair"),
        (talk("Hi", "x<|im_end|>"), r"message 2 spells the special token <\|im_end\|>"),
        (talk("</s>", "x"), "message 1 spells the special token </s>"),
        (talk("a", "b", "<|endoftext|>", "d"), "message 3 spells the special token"),
        ([{"role": "<s>", "content": "x"}], "message 1 spells"),
        (
            [{"role": "user", "content": [{"type": "text", "text": t} for t in ("</", "s>")]}],
            "message 1 spells the special token </s>",
        ),
    ],
)
def test_problems_of_a_conversation_are_reported(messages: Any, problem: str, load: Load) -> None:
    with pytest.raises(BadConversation, match=problem):
        load(CHATML).render(messages)


def test_other_keys_are_kept_if_the_template_reads_them(load: Load) -> None:
    template = load(CHATML.replace("message['content']", "(message.why or '') + message.content"))
    messages = talk("2+2?", "4")
    messages[1] |= {"why": "easy: ", "unread": ["</s>"]}
    assert answers_of(template.render(messages)) == ["easy: 4<|im_end|>"]
    messages[1]["why"] = []
    assert answers_of(template.render(messages)) == ["4<|im_end|>"]
    for wrong, problem in [(["x"], "has `why` that is not text"), ("</s>", "message 2 spells")]:
        messages[1]["why"] = wrong
        with pytest.raises(BadConversation, match=problem):
            template.render(messages)


@pytest.mark.parametrize("read", ["reasoning_content", "thinking"])
@pytest.mark.parametrize("given", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_is_found_under_its_names(
    read: str, given: str, load: Load, theirs: Callable[..., Any]
) -> None:
    source = CHATML.replace("message['content']", f"(message.{read} or '') + message.content")
    messages = talk("2+2?", "4")
    messages[1][given] = "easy: "
    rendered = load(source).render(messages)
    assert rendered.text == theirs(messages, chat_template=source, tokenize=False)
    assert answers_of(rendered) == ["easy: 4<|im_end|>"]


def test_answers_a_template_does_not_show(load: Load) -> None:
    silent = "{% for m in messages if m.role == 'user' or m.content[:2] == 'an' %}"
    template = load(silent + "{{ m.content }}{% endfor %}")
    with pytest.raises(BadConversation, match="drops the answers"):
        template.render(talk("a", "b"))


def test_a_template_for_lists_of_parts_only_is_refused(load: Load) -> None:
    parts = "{% for part in message.content if part.type == 'text' %}{{ part.text }}{% endfor %}"
    with pytest.raises(BadInput, match="leaves out a message's text"):
        load("{% for message in messages %}" + parts + "{% endfor %}")


def test_a_copy_for_another_process(load: Load) -> None:
    template = load(THINKING_MARKED)
    copy = pickle.loads(pickle.dumps(template))
    assert copy.render(TALKS[1]) == template.render(TALKS[1])
    with pytest.raises(BadConversation, match="spells"):
        copy.render(talk("<s>", "x"))


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages['__class__'] }}",
        "{{ messages | attr('__class__') }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ [messages] | map(attribute='__class__') | list }}",
        "{{ raise_exception.__globals__ }}",
        "{{ raise_exception['__globals__'] }}",
        "{{ dict.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({}) }}",
        "{% macro m() %}{% endmacro %}{{ m.__call__ }}",
        "{% generation %}{{ ''.__class__ }}{% endgeneration %}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(attack: str, load: Load) -> None:
    with pytest.raises(BadInput, match="does something forbidden"):
        load(attack + CHATML)


def test_a_template_cannot_plant_what_python_calls(load: Load) -> None:
    macro = "{% macro planted() %}called{% endmacro %}"
    template = load(macro + "{{ namespace(__html__=planted) | escape }}" + CHATML)
    assert not template.render(talk("a", "b")).text.startswith("called")


@pytest.mark.parametrize("call", ["strftime_now('%Y')", "lipsum()"])
def test_the_text_cannot_depend_on_the_day(call: str, load: Load) -> None:
    with pytest.raises(BadInput, match=rf"calls {call.split('(')[0]}, .*from day to day"):
        load("{{ " + call + " }}" + CHATML)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{{ [1, 2] | random }}", "line 1: No filter named 'random'"),
        ("\n{% for %}", "line 2"),
        ("{% generation %}", "looking for .*endgeneration"),
        ("{% include 'x' %}", "no loader"),
    ],
)
def test_a_template_that_cannot_be_read(source: str, problem: str, load: Load) -> None:
    with pytest.raises((BadInput, BadConversation), match=problem):
        load(source + CHATML).render(talk("a", "b"))


@pytest.mark.parametrize(
    "block",
    [
        "{% generation %}a{% generation %}b{% endgeneration %}{% endgeneration %}",
        "{% for _ in [1, 2] %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
        "{% set x %}{% generation %} a {% endgeneration %}{% endset %}{{ x | trim }}",
    ],
)
def test_generation_blocks_that_say_nothing_clear(block: str, load: Load) -> None:
    with pytest.raises(BadInput, match="generation block"):
        load(CHATML + block).render(talk("a", "b"))


def test_what_is_set_in_a_generation_block_stays_there(
    load: Load, theirs: Callable[..., Any]
) -> None:
    source = CHATML + (
        "{% set x = 'out' %}{% generation %}{% set x = 'in' %}{{ x }}{% endgeneration %}{{ x }}"
    )
    rendered = load(source).render(TALKS[0])
    assert rendered.text == theirs(TALKS[0], chat_template=source, tokenize=False)
    assert answers_of(rendered) == ["in"]


def test_where_a_template_and_its_tokens_are_found(tmp_path: Path, tokenizer: Tokenizer) -> None:
    def config(**fields: Any) -> None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(fields))

    def text() -> str:
        return ChatTemplate.load(tmp_path, "the tokenizer of a test").render(talk("a", "b")).text

    body = "{% for m in messages %}{{ m.content }}{{ eos_token }}{{ odd_token }}{% endfor %}"
    with pytest.raises(BadInput, match=r"has no tokenizer\.json"):
        ChatTemplate.load(tmp_path, "the tokenizer of a test")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(BadInput, match="has no chat template") as caught:
        text()
    assert caught.value.message.startswith("the tokenizer of a test ")
    assert "chat_template: zephyr" in (caught.value.hint or "")

    config(chat_template="1" + body, eos_token={"content": "</s>"}, odd_token="!", bos_token=None)
    assert text() == "1a</s>!b</s>!"
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "<s>"}')
    named = [{"name": "tools", "template": "x"}, {"name": "default", "template": "2" + body}]
    config(chat_template=named)
    assert text() == "2a<s>b<s>"
    (tmp_path / "chat_template.jinja").write_text("3" + body)
    assert text() == "3a<s>b<s>"
    (tmp_path / "chat_template.jinja").unlink()
    config(chat_template=named[:1])
    with pytest.raises(BadInput, match="no chat template called `default`"):
        text()
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(BadInput, match="not valid JSON"):
        text()


def test_a_token_with_a_role_is_special_whatever_the_file_says(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    made = Tokenizer.from_str(tokenizer.to_str())
    made.add_tokens(["<stop>", "<think>"])
    save_tokenizer(made, {"eos_token": "<stop>"}, tmp_path)
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    template = ChatTemplate.load(tmp_path, "the tokenizer of a test")
    assert answers_of(template.render(talk("a", "<think>b"))) == ["<think>b<|im_end|>"]
    with pytest.raises(BadConversation, match="message 2 spells the special token <stop>"):
        template.render(talk("a", "b<stop>"))


def test_tokens_at_a_border() -> None:
    answers = ((4, 8), (10, 12))
    offsets = [(0, 4), (3, 5), (5, 7), (7, 9), (8, 10), (9, 13), (12, 13)]
    assert token_mask(offsets, answers).tolist() == [0, 1, 1, 1, 0, 1, 0]
    # Empty ranges stand for the character before them.
    offsets = [(0, 0), (4, 4), (5, 5), (8, 8), (9, 9), (12, 12), (13, 13)]
    assert token_mask(offsets, answers).tolist() == [0, 0, 1, 1, 0, 1, 0]
    assert token_mask(offsets, ()).tolist() == [0] * 7
    assert token_mask([], answers[:0]).tolist() == []
    with pytest.raises(AssertionError, match="offsets"):
        token_mask([(0, 0), (0, 0)], answers)


def test_indentation_counts_where_offsets_are_trimmed(load: Load, tokenizer: Tokenizer) -> None:
    trimming = Tokenizer.from_str(tokenizer.to_str())
    trimming.post_processor = processors.ByteLevel(trim_offsets=True)
    rendered = load(CHATML).render(talk("x  ", "if x:\n            y\n    z  "))
    offsets = trimming.encode(rendered.text, add_special_tokens=False).offsets
    assert any(begin == end for begin, end in offsets), "nothing trimmed, nothing tested"
    assert counted(trimming, rendered) == "if x:\n            y\n    z  <|im_end|>"


def test_an_end_of_turn_that_swallows_white_space_counts(load: Load, tokenizer: Tokenizer) -> None:
    """As the tokens of Phi-3 do."""
    added = json.loads(tokenizer.to_str())
    for token in added["added_tokens"]:
        token["rstrip"] = True
    greedy = Tokenizer.from_str(json.dumps(added))
    rendered = load(CHATML).render(talk("a", "b", "c", "d"))
    assert counted(greedy, rendered) == "b<|im_end|>d<|im_end|>"


@pytest.fixture(scope="module")
def chatml() -> ChatTemplate:
    return ChatTemplate(CHATML, {}, SPECIAL, "a test")


WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), max_size=12)


@given(st.lists(WORDS, min_size=2, max_size=6))
def test_any_text_comes_back(
    chatml: ChatTemplate, tokenizer: Tokenizer, contents: Sequence[str]
) -> None:
    rendered = chatml.render(talk(*contents))
    answers = [text + "<|im_end|>" for text in contents[1::2]]
    assert answers_of(rendered) == answers
    assert counted(tokenizer, rendered) == "".join(answers)
