"""The user's kubeconfig: a file, or several that KUBECONFIG lists, merged as kubectl does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from lightkube.core.exceptions import ConfigError

DEFAULT = "~/.kube/config"
KINDS = ("clusters", "users", "contexts")
FILES = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
"""Keys of clusters and users whose values are paths, relative to the file that has them."""


@dataclass(frozen=True)
class UserConfig:
    content: Mapping[str, Any]
    """Of all files; paths are absolute."""

    @property
    def contexts(self) -> list[str]:
        return [one["name"] for one in self.content["contexts"]]

    @property
    def current_context(self) -> str | None:
        return self.content["current-context"] or None

    def named(self, kind: str, name: str | None) -> Mapping[str, Any]:
        """A cluster, user or context; empty if there is none of that name."""
        for one in self.content[f"{kind}s"]:
            if one["name"] == name:
                found: Mapping[str, Any] = one[kind] or {}
                return found
        return {}


def has_user_config() -> bool:
    """Return whether the user has named a file, or has one in its usual place."""
    return bool(os.environ.get("KUBECONFIG")) or Path(DEFAULT).expanduser().is_file()


def used_context(named: str | None) -> str | None:
    """Return the context that calls go to: the named one, else the user's current one. None in a
    pod that uses its own token."""
    if named is not None or not has_user_config():
        return named
    return user_config().current_context


def user_config() -> UserConfig:
    """Of several files, the first that has an entry wins, and those that are missing are passed
    over."""
    listed = os.environ.get("KUBECONFIG") or DEFAULT
    files = [Path(name).expanduser() for name in listed.split(os.pathsep) if name]
    found = [file for file in files if file.is_file()]
    if not found:
        several = "Configuration files" if len(files) > 1 else "Configuration file"
        raise ConfigError(f"{several} {listed} not found")
    merged: dict[str, Any] = {"current-context": None}
    entries: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    for file in found:
        content = _read(file)
        merged["current-context"] = merged["current-context"] or content.get("current-context")
        for kind in KINDS:
            for one in content.get(kind) or ():
                inner = _with_whole_paths(one.get(kind[:-1]) or {}, file.resolve().parent)
                entries[kind].setdefault(one["name"], {"name": one["name"], kind[:-1]: inner})
    return UserConfig(merged | {kind: list(entries[kind].values()) for kind in KINDS})


def _read(file: Path) -> Mapping[str, Any]:
    try:
        content = yaml.safe_load(file.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not YAML: {error}") from None
    if not isinstance(content or {}, dict):
        raise ConfigError(f"{file} is not a kubeconfig")
    return content or {}


def _with_whole_paths(entry: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    whole: dict[str, Any] = {key: str(folder / entry[key]) for key in FILES if entry.get(key)}
    login = entry.get("exec")
    # One with a folder is found beside the kubeconfig, any other on the path.
    if login and "/" in str(login.get("command")):
        whole["exec"] = {**login, "command": str(folder / login["command"])}
    return {**entry, **whole}
