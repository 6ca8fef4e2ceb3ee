"""The API fuzzed from its own description: no 5xx, and every answer is of a described form."""

from __future__ import annotations

import pytest
import schemathesis
from explorer_subjects import tiny_model
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from srmlab.data import byte_tokenizer
from srmlab.explorer.server import create_app
from srmlab.explorer.session import Session

APP = create_app(Session(tiny_model(), byte_tokenizer(), name="tiny"))
schema = schemathesis.openapi.from_dict(APP.openapi())
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@schema.parametrize()
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
def test_no_request_breaks_the_server(case, address):
    case.call_and_validate(base_url=address, checks=CHECKS)


@pytest.mark.soak
@schema.parametrize()
@settings(
    max_examples=1000,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
def test_no_request_breaks_the_server_a_thousand_times_each(case, address):
    case.call_and_validate(base_url=address, checks=CHECKS)


def test_the_description_names_every_question_and_the_one_form_of_error():
    described = schema.raw_schema
    assert set(described["paths"]) == {
        "/api/model",
        "/api/trace",
        "/api/intervene",
        "/api/generate",
        "/api/sweep",
        "/api/jobs/{id}",
        "/api/results/{name}",
        "/api/paths",
        "/api/attention",
        "/api/induction",
        "/api/switches/{layer}/{head}/{target}/{source}",
        "/api/features",
        "/api/features/{stream}/{feature}",
    }
    for path in described["paths"].values():
        for operation in path.values():
            assert operation["responses"]["429"]["content"]["application/json"]["schema"]["$ref"].endswith(
                "/Error"
            )
