"""Status routes: models, health, metrics.

In:  GET requests. Out: OpenAI's model list, a health answer for supervisors, Prometheus'
text. None of these waits for the engine.
"""

from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from headlong.server.metrics import CONTENT_TYPE
from headlong.server.replicas import ReplicaStatus, nobody_up, status_of
from headlong.server.response_schemas import ERRORS
from headlong.server.service import Service, service_of

router = APIRouter(tags=["server"])


class ModelCard(BaseModel):
    """One model, as OpenAI's API shows it."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "headlong"
    max_model_len: int = Field(description="Tokens of prompt and answer together.")
    drafter: str | None = Field(description="Who drafts; null without a drafter.")


class ModelList(BaseModel):
    """All models served; there is one."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Health(BaseModel):
    """Whether the server can answer."""

    status: Literal["ok", "down"]
    problem: str | None = Field(description="Why it cannot; null when it can.")
    num_running: int
    num_waiting: int
    replicas: list[ReplicaStatus] = Field(
        description="Engines in other processes; none where this one computes."
    )


@router.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    """List the model."""
    return ModelList(data=[_card(service_of(request))])


@router.get("/v1/models/{model_id:path}", responses={404: ERRORS[404]})
async def show_model(model_id: str, request: Request) -> ModelCard:
    """Show the model, by its name."""
    service = service_of(request)
    service.check_model(model_id)
    return _card(service)


@router.get("/health", responses={503: {"model": Health, "description": "The engine is down."}})
async def health(request: Request, response: Response) -> Health:
    """Tell whether there is somebody to take requests."""
    service = service_of(request)
    worker, replicas = service.worker, service.model.replicas
    now, refusal = worker.snapshot(), worker.refusal
    problem = nobody_up(replicas) if refusal is None else str(refusal)
    response.status_code = 200 if problem is None else 503
    is_open = not service.settings.api_keys
    return Health(
        status="ok" if problem is None else "down",
        problem=problem,
        num_running=now.num_running,
        num_waiting=now.num_waiting,
        replicas=[status_of(one, is_open=is_open) for one in replicas],
    )


_TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}


@router.get("/metrics", responses=_TEXT, response_class=Response)
async def metrics(request: Request) -> Response:
    """Return all numbers in Prometheus' text format."""
    return Response(service_of(request).metrics.render(), media_type=CONTENT_TYPE)


def _card(service: Service) -> ModelCard:
    return ModelCard(
        id=service.model_id,
        created=service.created_s,
        max_model_len=service.context_length,
        drafter=service.model.drafter,
    )
