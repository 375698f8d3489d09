"""Tokenizers: loaded from a folder or the hub, or trained on the text itself.

In each case, transformers' AutoTokenizer can read a set's `tokenizer/` folder, so an exported model
includes it unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from headway.data.hub_reachable import why_hub_is_away
from headway.data.set_format import Layout
from headway.errors import BadInput, NotFound

TOKENIZER_JSON = "tokenizer.json"
CONFIG_JSON = "tokenizer_config.json"
TEMPLATE_JINJA = "chat_template.jinja"
COMPANIONS = (CONFIG_JSON, "special_tokens_map.json", TEMPLATE_JINJA)

END_OF_TEXT = "<|endoftext|>"

CHAT_TEMPLATES = {
    # As the model of that name has it, but nothing follows the last message's end of text. Its
    # headers are plain text and its turns end with a token that every causal model has, so a
    # model needs no new embeddings, and generation stops at the end of an answer.
    "zephyr": (
        "{% for message in messages %}{{ '' if loop.first else '\\n' }}"
        "{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '\\n<|assistant|>\\n' }}{% endif %}\n"
    ),
}
"""Built-in chat templates by name."""

# Roles by the names that transformers uses.
_TRAINED_ROLES: dict[Layout, dict[str, str]] = {
    "stream": {"eos_token": END_OF_TEXT, "bos_token": END_OF_TEXT, "unk_token": END_OF_TEXT},
    "windows": {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    },
}

# Fallback for a tokenizer.json without a config that says which token has which role.
_USUAL_NAMES = {
    "eos_token": (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
}


@dataclass(frozen=True)
class TokenizerSource:
    """Where the tokenizer comes from: `load` or `train_vocab`."""

    load: str | None = None
    """A folder with tokenizer.json, or a name on the hub."""
    train_vocab: int | None = None
    """Vocabulary size of a tokenizer to train on the text."""
    chat_template: str | None = None
    """With `load`: name of the built-in chat template that takes the place of its own."""
    revision: str | None = None
    """With a name on the hub: commit, tag or branch."""

    def __post_init__(self) -> None:
        assert (self.load is None) != (self.train_vocab is None), "exactly one of the two"
        assert self.load is not None or self.chat_template is None


@dataclass(frozen=True)
class TokenizerFiles:
    """A tokenizer's files on this machine, by name; always includes tokenizer.json."""

    paths: Mapping[str, Path]

    def load(self) -> Tokenizer:
        path = self.paths[TOKENIZER_JSON]
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception
            raise BadInput(
                f"{path} cannot be read as a tokenizer: {error}",
                "a fast tokenizer is needed, as transformers' save_pretrained writes it",
            ) from None

    def roles(self) -> dict[str, str]:
        """Tokens by role, as the companions define them."""
        roles: dict[str, str] = {}
        for name in reversed(COMPANIONS):  # the config takes precedence
            if name in self.paths and name.endswith(".json"):
                roles |= _roles_in(self.paths[name])
        return roles


def find_tokenizer(source: str, beside: Path, revision: str | None = None) -> TokenizerFiles:
    """The files of a folder (relative to `beside`) or of a model on the hub."""
    folder = beside / Path(source).expanduser()
    if folder.is_dir():
        if not (folder / TOKENIZER_JSON).is_file():
            raise BadInput(
                f"{folder} has no {TOKENIZER_JSON}",
                "save a fast tokenizer there with transformers' save_pretrained",
            )
        names = (TOKENIZER_JSON, *COMPANIONS)
        return TokenizerFiles({name: folder / name for name in names if (folder / name).is_file()})
    if source.startswith((".", "/", "~")) or source.count("/") > 1:
        raise NotFound(f"no tokenizer folder {folder}", "check the path, or give a hub name")
    return _from_hub(source, revision)


def load_tokenizer(source: str, beside: Path) -> Tokenizer:
    return find_tokenizer(source, beside).load()


def train_tokenizer(documents: Iterator[str], vocab: int, layout: Layout) -> Tokenizer:
    """A byte-level BPE of at most `vocab` tokens: it can encode any text, so nothing is unknown."""
    special = list(dict.fromkeys(_TRAINED_ROLES[layout].values()))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    least = len(alphabet) + len(special)
    if vocab < least:
        raise BadInput(
            f"a vocabulary of {vocab} is too small",
            f"give at least {least}: all bytes and {len(special)} special tokens",
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in special],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    if layout == "windows":
        ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
        )
    return tokenizer


def trained_roles(layout: Layout) -> dict[str, str]:
    return dict(_TRAINED_ROLES[layout])


def role_id(tokenizer: Tokenizer, roles: Mapping[str, str], role: str) -> int | None:
    """The id of the token with this role: as configured, otherwise by its usual names."""
    names = [roles[role]] if role in roles else _USUAL_NAMES.get(role, ())
    for name in names:
        found = tokenizer.token_to_id(name)
        if found is not None:
            return int(found)
    return None


def special_token_ids(tokenizer: Tokenizer) -> list[int]:
    added = tokenizer.get_added_tokens_decoder()
    return sorted(number for number, token in added.items() if token.special)


def vocab_size(tokenizer: Tokenizer) -> int:
    """One more than the largest id: ids may have gaps, and embeddings are indexed by id."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def save_tokenizer(tokenizer: Tokenizer, roles: Mapping[str, str], folder: Path) -> None:
    """Writes tokenizer.json, and a config that tells AutoTokenizer the special tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    content = tokenizer.to_str(pretty=True)
    (folder / TOKENIZER_JSON).write_text(content, encoding="utf-8", newline="\n")
    _write_config(roles, folder)


def copy_tokenizer(files: TokenizerFiles, folder: Path) -> TokenizerFiles:
    """Copies the files byte for byte; creates a config only if there is none. Returns the copy."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in files.paths.items():
        (folder / name).write_bytes(path.read_bytes())
    if CONFIG_JSON not in files.paths:
        tokenizer = files.load()
        roles = files.roles()
        for role in _USUAL_NAMES:
            number = role_id(tokenizer, roles, role)
            token = None if number is None else tokenizer.id_to_token(number)
            if token is not None:
                roles[role] = token
        _write_config(roles, folder)
    return TokenizerFiles({path.name: path for path in folder.iterdir()})


def write_chat_template(name: str, roles: Mapping[str, str], folder: Path, called: str) -> None:
    """Writes a built-in template where transformers looks first. `called`: the tokenizer, for
    errors."""
    if "eos_token" not in roles:
        raise BadInput(
            f"{called} names no eos_token, with which the chat template {name} ends a message",
            f"name it in the tokenizer's {CONFIG_JSON}",
        )
    (folder / TEMPLATE_JINJA).write_text(CHAT_TEMPLATES[name], encoding="utf-8", newline="\n")


def _write_config(roles: Mapping[str, str], folder: Path) -> None:
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,  # it would alter correctly decoded text
        **roles,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / CONFIG_JSON).write_text(text, encoding="utf-8", newline="\n")


def _roles_in(path: Path) -> dict[str, str]:
    try:
        fields: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInput(f"{path} is not valid JSON: {error}", "save the tokenizer again") from None
    roles = {}
    for role, value in fields.items() if isinstance(fields, dict) else ():
        if role in _USUAL_NAMES or role == "bos_token":
            token = value.get("content") if isinstance(value, dict) else value
            if isinstance(token, str):
                roles[role] = token
    return roles


def _from_hub(name: str, revision: str | None) -> TokenizerFiles:
    # Imported lazily: it is slow to import, and most sets never need it.
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    away = why_hub_is_away()
    paths: dict[str, Path] = {}
    for file in (TOKENIZER_JSON, *COMPANIONS):
        try:
            paths[file] = Path(hf_hub_download(name, file, revision=revision))
        except HFValidationError:
            raise BadInput(
                f"`{name}` is neither a folder nor a name on the hub",
                "give a folder with tokenizer.json, or a name such as gpt2",
            ) from None
        except GatedRepoError:
            raise BadInput(
                f"the hub does not let you read `{name}`",
                f"accept its terms at https://huggingface.co/{name} and set HF_TOKEN",
            ) from None
        except RevisionNotFoundError:
            raise NotFound(
                f"tokenizer `{name}` on the hub has no revision {revision}",
                "give a commit, a tag or a branch of it",
            ) from None
        except RepositoryNotFoundError:
            raise NotFound(
                f"no tokenizer `{name}`: no such folder, and the hub does not know it",
                "check the name; a private one needs HF_TOKEN",
            ) from None
        except RemoteEntryNotFoundError:
            if file == TOKENIZER_JSON:
                raise BadInput(
                    f"`{name}` on the hub has no {TOKENIZER_JSON}",
                    "save it as a fast tokenizer with transformers, and give that folder",
                ) from None
        except LocalEntryNotFoundError:
            # Offline, a companion that is not in the cache may not exist at all.
            if file == TOKENIZER_JSON or not constants.HF_HUB_OFFLINE:
                raise BadInput(
                    f"no tokenizer `{name}`: no such folder, and the hub cannot be reached"
                    + (f" ({away})" if away else ""),
                    "connect (HF_HUB_OFFLINE unset), or give a folder with tokenizer.json",
                ) from None
    return TokenizerFiles(paths)
