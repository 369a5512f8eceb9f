"""A loaded model behind an app, with an engine of its own: tests of one model do not mix."""

from dataclasses import replace
from typing import Any

from fastapi import FastAPI

from headlong.engine.engine import Engine
from headlong.llm import LLM
from headlong.server.app import make_app
from headlong.server.served_model import ServedModel
from headlong.server.settings import ServerSettings


def with_own_engine(llm: LLM, settings: ServerSettings) -> LLM:
    """Return the same model in a new engine, with the limits that the settings name."""
    return replace(llm, engine=Engine.for_model(llm.backbone, llm.drafter, settings.engine_limits))


def make_model_app(llm: LLM, **fields: Any) -> FastAPI:
    """Return the app that serves a model with these settings."""
    settings = ServerSettings(**fields)
    return make_app(ServedModel.of_llm(with_own_engine(llm, settings)), settings)
