"""Instructor, unchanged: answers in the shape of a pydantic model."""

from __future__ import annotations

import os

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field

CLIENT = OpenAI(base_url=os.environ["BATON_URL"] + "/v1", api_key="none", max_retries=0)
HELLO = [{"role": "user", "content": "The weather?"}]


class Weather(BaseModel, extra="forbid"):  # a schema allows other keys unless it forbids them
    place: str = Field(max_length=8)
    degrees: int = Field(ge=-50, le=50)
    is_dry: bool


def check(mode: instructor.Mode) -> None:
    client = instructor.from_openai(CLIENT, mode=mode)
    asked = {
        "model": "demo_model",
        "messages": HELLO,
        "max_tokens": 100,
        "temperature": 1.5,
        "max_retries": 0,
    }
    for seed in range(3):
        weather = client.chat.completions.create(**asked, seed=seed, response_model=Weather)
        assert isinstance(weather, Weather)
    *_, last = client.chat.completions.create_partial(**asked, seed=3, response_model=Weather)
    Weather.model_validate(last.model_dump())


if __name__ == "__main__":
    for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS):
        check(mode)
