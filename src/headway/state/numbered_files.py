"""Files with rising numbers, a hundred to a folder: `FOLDER/0123/012345.json`. No number is ever
left out.

The newest are found by two listings, however many there are: of the folders, and of the last one.
"""

from __future__ import annotations

import re

from headway.state.store import Store

FOLDER_FILES = 100


class NumberedFiles:
    def __init__(self, store: Store, folder: str, digits: int, suffix: str) -> None:
        self._store = store
        self._folder = folder
        self._digits = digits
        self._file = re.compile(rf"/([0-9]{{{digits},}}){re.escape(suffix)}$")
        self._suffix = suffix

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
        last = (name.rsplit("/", 1)[-1] for name in self._store.children(self._folder))
        for index in sorted((int(name) for name in last if name.isdecimal()), reverse=True):
            found = self._numbered(self._store.children(self._folder_of(index * FOLDER_FILES)))
            if found:  # a folder that a killed writer made is empty
                return found
        return {}

    def after(self, number: int) -> dict[int, str]:
        """Names of those with a higher number, in order. `number` is that of a file, or 0."""
        if number == 0:
            return self.all()
        found: dict[int, str] = {}
        last = number
        while last == number or last in found:  # the last one of its folder
            found |= self._numbered(self._store.children(self._folder_of(last + 1)))
            last += FOLDER_FILES - (last + 1) % FOLDER_FILES
        return {one: name for one, name in found.items() if one > number}

    def _folder_of(self, number: int) -> str:
        return f"{self._folder}/{number // FOLDER_FILES:0{self._digits - 2}d}"

    def _numbered(self, names: list[str]) -> dict[int, str]:
        found = {int(match[1]): name for name in names if (match := self._file.search(name))}
        return {number: found[number] for number in sorted(found)}
