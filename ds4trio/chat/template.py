"""Conversations written by a model's own Hugging Face chat template."""

from __future__ import annotations

import secrets
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import jinja2

from ds4trio.chat.call_grammar import answer_format
from ds4trio.chat.format import Prompt, Written
from ds4trio.chat.markup import TAGGED, thinking_markup_in, tool_markup_in
from ds4trio.chat.messages import (
    SYSTEM_ROLES,
    message_fields,
    tool_fields,
    with_calls_apart,
    with_reminders_by_system,
    with_results_in_order,
    with_system_in_first_turn,
    with_turns_joined,
)
from ds4trio.chat.output import AnswerParser
from ds4trio.chat.sandbox import compile_template, render_template, variables_read
from ds4trio.chat.shield import ControlShield
from ds4trio.chat.thinking import ThinkingSplitter
from ds4trio.chat.thinking_switch import THINKING_SWITCHES, thinking_variables
from ds4trio.chat.tool_parser import ToolParser
from ds4trio.chat.tools_as_text import with_tools_as_text
from ds4trio.errors import LoadError, RequestError
from ds4trio.request import Conversation, GenerationRequest, Message
from ds4trio.text.control import ControlSplitter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ds4trio.chat.shield import Disguise
    from ds4trio.request import OutputFormat, ToolSpec
    from ds4trio.text.tokenizer import Tokenizer

#: An answer that no template writes by itself.
_PROBE = "forty-two sparrows"
_PROBE_OF_USER = Message("user", "How many?")
_PROBE_OF_SYSTEM = Message("system", _PROBE)


def random_call_id() -> str:
    """An id for a tool call that no other has."""
    return f"call_{secrets.token_hex(12)}"


class TemplateChatFormat:
    """A `ds4trio.chat.format.ChatFormat` over a chat template.

    The prompt is what transformers' ``apply_chat_template`` gives, except that control tokens typed
    by a user, anywhere, stay text; that tools are explained in words where the template has no
    place for them, or a form of calls that is not known here; and that turns are joined where it
    refuses them one by one.
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        variables: Mapping[str, object],
        stop_ids: Iterable[int] = (),
        new_call_id: Callable[[], str] = random_call_id,
    ) -> None:
        """``variables`` are seen by the template (``bos_token``, ...). To ``stop_ids`` is added the
        control token with which the template closes an assistant's turn.

        Raises: LoadError if the template is not valid Jinja2.
        """
        try:
            self._template = compile_template(source)
            self._reads = variables_read(source)
        except jinja2.TemplateError as error:
            raise LoadError(f"chat_template: {error}") from None
        self._source = source
        self._tokenizer = tokenizer
        self._variables = dict(variables)
        self._new_call_id = new_call_id
        own_markup = tool_markup_in(source) if "tools" in self._reads else None
        self._knows_tools = own_markup is not None
        self._tool_markup = own_markup or TAGGED
        self._thinking = thinking_markup_in(source)
        marks = {self._thinking.start, self._thinking.end} if self._thinking else set()
        calls = {self._tool_markup.opening, self._tool_markup.closing} - {""}
        self.visible_tokens = frozenset(marks | calls)
        self.thinking_end = self._thinking.end if self._thinking else None
        self._splitter = ControlSplitter(tokenizer.control_tokens)
        self._shield = ControlShield({*tokenizer.control_tokens, *marks})
        self.stop_ids = frozenset(stop_ids) | self._closing_ids()
        self._hears_system = self._hears([_PROBE_OF_SYSTEM, _PROBE_OF_USER])
        self._hears_system_late = self._hears([_PROBE_OF_USER, _PROBE_OF_SYSTEM])

    def render(self, request: GenerationRequest) -> Prompt:
        written = self.write(request)
        return self.prompt(written, self._tokenizer.encode_parts(written.parts))

    def write(self, request: GenerationRequest) -> Written:
        disguise = self._shield.disguise()
        text = self._written(request, disguise)
        text, thinking = self._with_thoughts_open(text, request)
        parts = [
            disguise.reveal(part) if isinstance(part, str) else part
            for part in self._splitter.split(text)
        ]
        return Written(disguise.reveal(text), parts, thinking)

    def prompt(self, written: Written, token_ids: list[int]) -> Prompt:
        return Prompt(written.text, token_ids, written.thinking)

    def output_format(self, request: GenerationRequest) -> OutputFormat | None:
        return answer_format(request, self._tool_markup)

    def new_parser(self, request: GenerationRequest, prompt: Prompt) -> AnswerParser:
        marks, tools = self._thinking, _offered(request)
        new_tools = partial(ToolParser, self._tool_markup, tools, self._new_call_id)
        return AnswerParser(
            request.stop,
            thinking=ThinkingSplitter(marks, opened=prompt.thinking) if marks else None,
            new_tools=new_tools if tools else None,
            one_call=not request.parallel_tool_calls,
        )

    def _written(self, request: GenerationRequest, disguise: Disguise) -> str:
        """The text, with what users wrote hidden. Raises: RequestError."""
        variables = thinking_variables(request.thinking, self._source, self._reads)
        messages, tools = self._prepared(request)
        if self._knows_tools and tools:
            variables["tools"] = [tool_fields(tool, disguise.hide) for tool in tools]
        refusal: RequestError | None = None
        for arrangement in self._arrangements(messages):
            try:
                return self._render(arrangement, disguise, variables)
            except RequestError as error:
                refusal = refusal or error
        assert refusal is not None  # there is always an arrangement
        raise refusal

    def _arrangements(self, messages: list[Message]) -> Iterator[list[Message]]:
        """The messages, and what says the same in fewer turns; only those in which the template
        leaves out nothing that the system says."""
        system_at = [at for at, message in enumerate(messages) if message.role in SYSTEM_ROLES]
        if self._hears_system or not system_at:
            if self._hears_system_late or not any(system_at):
                yield messages
            yield with_turns_joined(messages)
        yield with_system_in_first_turn(messages)

    def _prepared(self, request: GenerationRequest) -> tuple[list[Message], Sequence[ToolSpec]]:
        assert isinstance(request.prompt, Conversation)  # raw prompts have no chat format
        messages = with_results_in_order(request.prompt.messages)
        if "latest_reminder" not in self._source:
            messages = with_reminders_by_system(messages)
        tools = _offered(request)
        if not self._knows_tools:
            return with_tools_as_text(messages, tools), ()
        if self._tool_markup.most_calls is not None:
            messages = list(with_calls_apart(messages, self._tool_markup.most_calls))
        return messages, tools

    def _render(
        self, messages: Iterable[Message], disguise: Disguise, variables: Mapping[str, object]
    ) -> str:
        fields = [
            message_fields(
                message,
                disguise.hide,
                knows_developer="developer" in self._source,
                call_id_chars=self._tool_markup.call_id_chars,
            )
            for message in messages
        ]
        given = {
            **self._variables,
            "messages": fields,
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
            **variables,
        }
        try:
            return render_template(self._template, given, disguise)
        except Exception as error:  # the template is code of others; it may raise anything
            problem = disguise.reveal(str(error))
            raise RequestError(
                f"The model's chat template refuses these messages: {problem}", param="messages"
            ) from error

    def _with_thoughts_open(self, text: str, request: GenerationRequest) -> tuple[str, bool]:
        """The text, and whether it ends within thoughts.

        A model that opens its thoughts itself, if it likes, could not do so in an answer whose form
        is prescribed. So they are opened for it, unless they are switched off.
        """
        marks, end = self._thinking, text.rstrip()
        if marks is None or end.endswith(marks.end):
            return text, False
        if end.endswith(marks.start):
            return text, True
        decides = not self._reads.isdisjoint(THINKING_SWITCHES)
        if (
            not decides
            or request.thinking.enabled is False
            or request.thinking.effort == "none"
            or self.output_format(request) is None
        ):
            return text, False
        return f"{text}{marks.start}\n", True

    def _hears(self, probe: list[Message]) -> bool:
        """Whether what the system says is there, and not as if it were the assistant's."""
        mistaken = [replace(m, role="assistant") if m.role == "system" else m for m in probe]
        disguise, no_prompt = self._shield.disguise(), {"add_generation_prompt": False}
        try:
            text = self._render(probe, disguise, no_prompt)
        except RequestError:
            return False
        if _PROBE not in disguise.reveal(text):
            return False
        try:
            return text != self._render(mistaken, disguise, no_prompt)
        except RequestError:
            return True

    def _closing_ids(self) -> frozenset[int]:
        probe = [_PROBE_OF_USER, Message("assistant", _PROBE)]
        disguise = self._shield.disguise()
        try:
            text = self._render(probe, disguise, {"add_generation_prompt": False})
        except RequestError:
            return frozenset()
        _, found, closing = disguise.reveal(text).rpartition(_PROBE)
        match self._splitter.split(closing.lstrip()) if found else []:
            case [int(token_id), *_]:
                return frozenset((token_id,))
        return frozenset()


def _offered(request: GenerationRequest) -> tuple[ToolSpec, ...]:
    return () if request.tool_choice == "none" else request.tools
