"""One tool call's JSON object, read as it comes."""

from __future__ import annotations

from typing import Protocol

from ds4trio.chat.json_reader import ObjectReader, Progress, StringDecoder, decoded_string

#: The member that holds a custom tool's plain input.
INPUT_KEY = "input"
_ARGUMENT_KEYS = ("arguments", "parameters")


class CallReader:
    """Finds a call's name and arguments. Other members are ignored, broken ones make it broken."""

    def __init__(self) -> None:
        self._object = ObjectReader()
        self._name_text = ""
        self._arguments = ""
        #: The name, once it is whole.
        self.name: str | None = None
        #: Whether there are arguments, perhaps not yet whole.
        self.has_arguments = False

    def feed(self, char: str) -> Progress:
        """PART, WRONG, or LAST: the object is whole, and it is a call."""
        progress = self._object.feed(char)
        if self._object.key == "name":
            if not self._name_char():
                return Progress.WRONG
        elif self._object.key in _ARGUMENT_KEYS and not self._arguments_char():
            return Progress.WRONG
        if progress is Progress.LAST and self.name is None:
            return Progress.WRONG
        return progress

    def take_arguments(self) -> str:
        """JSON text of the arguments, as it stands, that came since the last call."""
        taken, self._arguments = self._arguments, ""
        return taken

    def _name_char(self) -> bool:
        text, ended = self._object.value_text, self._object.value_ended
        if text and (self.name is not None or not (self._name_text or text == '"')):
            return False
        self._name_text += text
        if ended:
            self.name = decoded_string(self._name_text)
        return self.name != ""

    def _arguments_char(self) -> bool:
        text = self._object.value_text
        if not text:
            return True
        if self._object.value_begun:
            if self.has_arguments or text not in '{"':
                return False
            self.has_arguments = True
        self._arguments += text
        return True


class ArgumentsReader(Protocol):
    """A call's arguments as the model wrote them, to what the asker is given."""

    def feed(self, text: str) -> str:
        """What more JSON text of the arguments adds."""
        ...


class JsonArguments:
    """Arguments as they stand; some models write them inside a string."""

    def __init__(self) -> None:
        self._decoder: StringDecoder | None = None
        self._begun = False

    def feed(self, text: str) -> str:
        if not self._begun and text:
            self._begun = True
            if text.startswith('"'):
                self._decoder = StringDecoder()
        return text if self._decoder is None else self._decoder.feed(text)


class PlainInput:
    """The text in ``{"input": text}``, or a lone string; anything else stays as it stands."""

    def __init__(self) -> None:
        self._seen = ""
        self._object = ObjectReader()
        self._decoder: StringDecoder | None = None
        self._as_it_stands = False

    def feed(self, text: str) -> str:
        return "".join([self._char(char) for char in text])

    def _char(self, char: str) -> str:
        if self._as_it_stands:
            return char
        if not self._seen and char == '"':
            self._decoder = StringDecoder()
        self._seen += char
        if self._seen.startswith('"') and self._decoder is not None:
            return self._decoder.feed(char)
        self._object.feed(char)
        value = self._object.value_text
        if not value:
            return ""
        if self._decoder is None:
            if self._object.key != INPUT_KEY or value != '"':
                self._as_it_stands = True
                return self._seen
            self._decoder = StringDecoder()
        return self._decoder.feed(value) if self._object.key == INPUT_KEY else ""
