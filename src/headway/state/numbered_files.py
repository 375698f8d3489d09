"""Files with rising numbers, a hundred to a folder: `FOLDER/0123/012345.json`.

The newest are found by two listings, however many there are: of the folders, and of the last one.
"""

from __future__ import annotations

import re

from headway.state.store import Store

FOLDER_FILES = 100
MOST_LISTED = 4
"""From so many folders on, one listing of everything is cheaper than one for each of them."""


class NumberedFiles:
    def __init__(
        self, store: Store, folder: str, digits: int, suffix: str, *, is_gapless: bool
    ) -> None:
        """`is_gapless`: no number is ever left out, so those after a known one need one listing."""
        self._store = store
        self._folder = folder
        self._digits = digits
        self._suffix = suffix
        self._is_gapless = is_gapless
        self._file = re.compile(rf"/([0-9]{{{digits},}}){re.escape(suffix)}$")
        self._has_listed = False
        """Whether the folders were listed: those that follow a known number need no look at all."""

    def name(self, number: int) -> str:
        return f"{self._folder_of(number)}/{number:0{self._digits}d}{self._suffix}"

    def all(self) -> dict[int, str]:
        """Names by number, in order."""
        return self._numbered(self._store.names(self._folder))

    def newest(self) -> int:
        """The highest number; 0 if there is none."""
        return max(self.newest_folder(), default=0)

    def newest_folder(self) -> dict[int, str]:
        """Names of those in the last folder, in order."""
        for _, folder in sorted(self._folders().items(), reverse=True):
            found = self._numbered(self._store.children(folder))
            if found:  # a folder that a killed writer made is empty
                return found
        return {}

    def after(self, number: int) -> dict[int, str]:
        """Names of those with a higher number, in order."""
        found: dict[int, str] = {}
        if self._is_gapless and self._has_listed:
            found = self._following(number)
        else:
            folders = [
                folder
                for index, folder in self._folders().items()
                if index >= number // FOLDER_FILES
            ]
            if len(folders) > MOST_LISTED:
                found = self.all()
            else:
                for folder in folders:
                    found |= self._numbered(self._store.children(folder))
        return {one: found[one] for one in sorted(found) if one > number}

    def _following(self, number: int) -> dict[int, str]:
        found: dict[int, str] = {}
        while True:
            number += 1
            here = self._numbered(self._store.children(self._folder_of(number)))
            found |= here
            number += FOLDER_FILES - 1 - number % FOLDER_FILES
            if number not in here:  # the last one of its folder
                return found

    def _folder_of(self, number: int) -> str:
        return f"{self._folder}/{number // FOLDER_FILES:0{self._digits - 2}d}"

    def _folders(self) -> dict[int, str]:
        """By their numbers, in order."""
        self._has_listed = True
        found = {name.rsplit("/", 1)[-1]: name for name in self._store.children(self._folder)}
        return {int(last): found[last] for last in sorted(found) if last.isdecimal()}

    def _numbered(self, names: list[str]) -> dict[int, str]:
        found = {int(match[1]): name for name in names if (match := self._file.search(name))}
        return {number: found[number] for number in sorted(found)}
