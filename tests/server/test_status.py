from __future__ import annotations

import json

import anthropic.pagination
import anthropic.types
from openai.pagination import SyncPage
from openai.types import Model

from ds4trio.server import status


def test_health_and_readiness() -> None:
    assert json.loads(status.health()) == {"status": "ok"}
    assert json.loads(status.ready(True)) == {"status": "ready"}
    assert json.loads(status.ready(False)) == {"status": "not_ready"}


def test_a_model_is_of_the_official_type_and_says_how_long_its_context_is() -> None:
    model = Model.model_validate_json(
        status.model("smol", 8192, created=1_700_000_000), strict=True
    )
    assert (model.id, model.created, model.owned_by) == ("smol", 1_700_000_000, "ds4trio")
    assert model.model_extra is not None
    assert model.model_extra.items() >= {"context_length": 8192, "max_model_len": 8192}.items()


def test_a_model_is_of_the_other_official_type_too() -> None:
    said = status.model("smol", 8192, created=1_700_000_000)
    model = anthropic.types.ModelInfo.model_validate_json(said, strict=True)
    assert (model.id, model.display_name, model.lifecycle) == ("smol", "smol", "active")
    assert (model.max_input_tokens, model.max_tokens) == (8192, 8192)
    assert model.created_at.isoformat() == "2023-11-14T22:13:20+00:00"


def test_the_list_holds_the_one_model() -> None:
    page = SyncPage[Model].model_validate_json(status.models("smol", 8192), strict=True)
    assert page.object == "list"
    assert page.data == [Model.model_validate_json(status.model("smol", 8192), strict=True)]
    other = anthropic.pagination.SyncPage[anthropic.types.ModelInfo]
    assert [m.id for m in other.model_validate_json(status.models("smol", 8192)).data] == ["smol"]
