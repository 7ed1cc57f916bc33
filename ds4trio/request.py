"""What is asked of a model, in no protocol's words.

Knows nothing of HTTP, JSON dialects, tokens of a particular model, or torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

#: ``latest_reminder`` is DeepSeek V4's: instructions that hold for the next turn.
Role = Literal["system", "developer", "user", "assistant", "tool", "latest_reminder"]

#: How hard to think, weakest first; protocols use different subsets.
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen.

    Units: ``temperature`` 0 means greedy; ``top_k`` 0 means all tokens; ``top_p`` 1 and ``min_p`` 0
    switch those filters off. ``seed`` makes a sequence reproducible whatever runs beside it; None
    draws a fresh one. ``presence_penalty`` and ``frequency_penalty`` are subtracted from the logits
    of tokens already generated (once, and per occurrence), as OpenAI defines them;
    ``repetition_penalty`` divides (multiplies, if negative) the logits of tokens in the prompt and
    the answer (Keskar et al. 2019, section 4.1). ``logit_bias`` is added, by token id.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool the model may call.

    ``parameters`` is a JSON schema for the arguments. ``grammar`` (Lark) is set instead for a tool
    whose input is plain text (OpenAI's "custom" tools); an empty grammar means any text. ``strict``
    asks that the arguments obey the schema. ``param`` is where the request says what a call must
    look like: errors name it.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, object] = field(default_factory=dict)
    grammar: str | None = None
    strict: bool = False
    param: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the model made. ``arguments`` is the JSON text (or a custom tool's plain input)."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation. All text is plain: never control tokens.

    ``reasoning`` is what the assistant thought before ``content``. A message of role ``tool`` says
    with ``tool_call_id`` which call it answers. ``name`` is the speaker's, where one was given.
    """

    role: Role
    content: str
    name: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages to be rendered by the model's chat format, answered by the assistant."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Raw text, continued as it stands: no chat format."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, continued as they stand."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PromptBatch:
    """Several raw prompts, each answered as often as asked for: with ``n`` answers to each, choice
    ``i * n + k`` is answer ``k`` to prompt ``i``."""

    prompts: tuple[TextPrompt | TokenPrompt, ...]


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The model must call this tool."""

    name: str


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedTool


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """The answer must be JSON that obeys ``schema``; an empty schema means any object.

    ``param``, in all output formats, is where the request says so: errors name it.
    """

    schema: Mapping[str, object]
    name: str | None = None
    description: str | None = None
    param: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Regex:
    """The answer must match, from beginning to end."""

    pattern: str
    param: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class LarkGrammar:
    """The answer must be derivable from the grammar's ``start``."""

    grammar: str
    param: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Choice:
    """The answer must be one of these."""

    options: tuple[str, ...]
    param: str | None = field(default=None, compare=False)


OutputFormat: TypeAlias = JsonSchema | Regex | LarkGrammar | Choice


@dataclass(frozen=True, slots=True)
class Thinking:
    """Whether and how hard to think before answering. None: the model's own default.

    ``budget_tokens`` closes the thinking after so many tokens, and the answer begins.
    """

    enabled: bool | None = None
    effort: Effort | None = None
    budget_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request: ``n`` answers to one prompt, or to each of a batch.

    ``max_tokens`` None means: as far as the context allows; more than fits is cut to what fits.
    ``stop`` strings end the text before them. ``ignore_eos`` goes on past the model's own end.
    ``logprobs`` asks for each token's log probability, and those of so many likelier ones (0: only
    its own). ``echo`` repeats a raw prompt before the answer, with its logprobs if asked for; only
    with it may ``max_tokens`` be 0. ``usage_so_far`` asks to hear it all along (`UsageSoFar`).
    ``output_format`` of a raw prompt holds for the answer's text; ``tools`` and ``thinking`` belong
    to conversations.
    """

    prompt: Conversation | TextPrompt | TokenPrompt | PromptBatch
    model: str | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    logprobs: int | None = None
    echo: bool = False
    usage_so_far: bool = False
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    output_format: OutputFormat | None = None
    thinking: Thinking = field(default_factory=Thinking)
