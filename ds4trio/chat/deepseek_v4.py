"""DeepSeek V4's conversations and answers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import deepseek_recipe as recipe

from ds4trio.chat.deepseek_v4_dsml import MARK
from ds4trio.chat.deepseek_v4_grammar import answer_format
from ds4trio.chat.deepseek_v4_parser import DsmlParser
from ds4trio.chat.deepseek_v4_prompt import (
    PromptContract,
    offered_tools,
    opens_calls,
    recipe_conversation,
    thinks,
)
from ds4trio.chat.deepseek_v4_structure import StructuralTokens, StructureTracker
from ds4trio.chat.format import Prompt, Written
from ds4trio.chat.markup import ThinkingMarkup
from ds4trio.chat.output import AnswerParser
from ds4trio.chat.template import random_call_id
from ds4trio.chat.thinking import ThinkingSplitter
from ds4trio.errors import LoadError, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ds4trio.request import GenerationRequest, OutputFormat
    from ds4trio.text.tokenizer import Tokenizer

_THOUGHTS = ThinkingMarkup("<think>", "</think>")
_MARKUP = frozenset((_THOUGHTS.start, _THOUGHTS.end, MARK))


class DeepseekV4ChatFormat:
    """A `ds4trio.chat.format.ChatFormat` over DeepSeek's ``deepseek-recipe``.

    The prompt is what the recipe makes of the same request, control tokens typed by a user staying
    text. Two things it refuses are served: a developer speaks as a user does (as in the recipe's
    own Responses requests), and a model that thinks can be made to call a tool: by a grammar for
    what comes after its thoughts. One that does not think finds the calls begun in its prompt.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        contract: PromptContract = PromptContract.TIERED,
        stop_ids: Iterable[int] = (),
        new_call_id: Callable[[], str] = random_call_id,
    ) -> None:
        """Raises: LoadError if the tokenizer is not one of DeepSeek V4."""
        known, special = tokenizer.control_tokens, recipe.SpecialToken
        needed = (special.Bos, special.Eos, special.User, special.Assistant)
        spellings = {*(token.default_str() for token in needed), *_MARKUP}
        if missing := spellings - known.keys():
            names = ", ".join(sorted(missing))
            raise LoadError(f"not a tokenizer of DeepSeek V4: it lacks {names}")
        self._tokenizer = tokenizer
        self._contract = contract
        self._new_call_id = new_call_id
        self._encoding = recipe.DeepseekV4Encoding()
        self.visible_tokens = _MARKUP
        self.thinking_end: str | None = _THOUGHTS.end
        self.stop_ids = frozenset(stop_ids) | {known[special.Eos.default_str()]}

    def render(self, request: GenerationRequest) -> Prompt:
        written = self.write(request)
        return self.prompt(written, self._tokenizer.encode_parts(written.parts))

    def write(self, request: GenerationRequest) -> Written:
        conversation = recipe_conversation(request, self._contract)
        rendered = self._encoding.render_conversation(conversation)
        text, ids = rendered.prompt, self._tokenizer.control_tokens
        parts: list[str | int] = []
        end = 0
        for start, special_end in rendered.special_ranges:
            spelling = text[start:special_end]
            if spelling not in ids:
                raise RequestError(f"this model's vocabulary lacks {spelling}", param="messages")
            parts += [text[end:start], ids[spelling]]
            end = special_end
        parts.append(text[end:])
        return Written(text, [part for part in parts if part != ""], thinks(request.thinking))

    def prompt(self, written: Written, token_ids: list[int]) -> Prompt:
        user_id = self._tokenizer.control_tokens[recipe.SpecialToken.User.default_str()]
        turns = [place for place, token_id in enumerate(token_ids) if token_id == user_id]
        # After the system prompt and its tools, and after all turns but the last.
        stable = tuple(dict.fromkeys((turns[0], turns[-1]))) if turns else ()
        return Prompt(written.text, token_ids, written.thinking, stable)

    def output_format(self, request: GenerationRequest) -> OutputFormat | None:
        return answer_format(request, in_block=opens_calls(request))

    def new_parser(self, request: GenerationRequest, prompt: Prompt) -> AnswerParser:
        tools = offered_tools(request)
        new_tools = partial(
            DsmlParser,
            tools,
            self._new_call_id,
            reads_calls=bool(tools),
            in_block=opens_calls(request),
        )
        return AnswerParser(
            request.stop,
            thinking=ThinkingSplitter(_THOUGHTS, opened=True) if prompt.thinking else None,
            new_tools=new_tools,
            one_call=not request.parallel_tool_calls,
        )

    def new_structure_tracker(
        self, request: GenerationRequest, prompt: Prompt
    ) -> StructureTracker | None:
        """What tells which tokens of an answer are markup; None if it can't have any."""
        if not offered_tools(request):
            return None
        thinking = ThinkingSplitter(_THOUGHTS, opened=True) if prompt.thinking else None
        return StructureTracker(thinking, in_block=opens_calls(request))

    def new_structural_tokens(
        self, request: GenerationRequest, prompt: Prompt
    ) -> StructuralTokens | None:
        """As ``new_structure_tracker``, by tokens."""
        tracker = self.new_structure_tracker(request, prompt)
        if tracker is None:
            return None
        return StructuralTokens(tracker, self._tokenizer.new_decoder(visible=self.visible_tokens))
