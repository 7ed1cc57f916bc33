"""Conversations written by a model's own Hugging Face chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jinja2

from ds4trio.chat.format import Prompt
from ds4trio.chat.sandbox import compile_template, render_template
from ds4trio.chat.shield import ControlShield
from ds4trio.errors import LoadError, RequestError
from ds4trio.request import Conversation, Message
from ds4trio.text.control import ControlSplitter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ds4trio.chat.shield import Disguise
    from ds4trio.text.tokenizer import Tokenizer

#: An answer that no template writes by itself.
_PROBE = "forty-two sparrows"


class TemplateChatFormat:
    """A `ds4trio.chat.format.ChatFormat` over a chat template.

    The prompt is what transformers' ``apply_chat_template`` gives, except that control tokens typed
    in a message stay text.
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        variables: Mapping[str, object],
        stop_ids: Iterable[int] = (),
    ) -> None:
        """``variables`` are seen by the template (``bos_token``, ...). To ``stop_ids`` is added the
        control token with which the template closes an assistant's turn.

        Raises: LoadError if the template is not valid Jinja2.
        """
        try:
            self._template = compile_template(source)
        except jinja2.TemplateError as error:
            raise LoadError(f"chat_template: {error}") from None
        self._tokenizer = tokenizer
        self._variables = dict(variables)
        self._splitter = ControlSplitter(tokenizer.control_tokens)
        self._shield = ControlShield(tokenizer.control_tokens)
        self.stop_ids = frozenset(stop_ids) | self._closing_ids()

    def render(self, conversation: Conversation) -> Prompt:
        disguise = self._disguise(conversation)
        text = self._render(conversation, disguise, add_generation_prompt=True)
        parts = [
            disguise.reveal(part) if isinstance(part, str) else part
            for part in self._splitter.split(text)
        ]
        return Prompt(disguise.reveal(text), self._tokenizer.encode_parts(parts))

    def _disguise(self, conversation: Conversation) -> Disguise:
        messages = conversation.messages
        return self._shield.disguise(
            [m.content for m in messages] + [m.name for m in messages if m.name is not None]
        )

    def _render(
        self, conversation: Conversation, disguise: Disguise, *, add_generation_prompt: bool
    ) -> str:
        variables = self._variables | {
            "messages": [_fields(message, disguise) for message in conversation.messages],
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return render_template(self._template, variables)
        except Exception as error:  # the template is code of others; it may raise anything
            problem = disguise.reveal(str(error))
            raise RequestError(
                f"The model's chat template refuses these messages: {problem}", param="messages"
            ) from error

    def _closing_ids(self) -> frozenset[int]:
        probe = Conversation((Message("user", "How many?"), Message("assistant", _PROBE)))
        disguise = self._disguise(probe)
        try:
            text = self._render(probe, disguise, add_generation_prompt=False)
        except RequestError:
            return frozenset()
        _, found, closing = disguise.reveal(text).rpartition(_PROBE)
        match self._splitter.split(closing.lstrip()) if found else []:
            case [int(token_id), *_]:
                return frozenset((token_id,))
        return frozenset()


def _fields(message: Message, disguise: Disguise) -> dict[str, str]:
    fields = {"role": message.role, "content": disguise.hide(message.content)}
    if message.name is not None:
        fields["name"] = disguise.hide(message.name)
    return fields
