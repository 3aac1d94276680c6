"""Which fleet a name stands for, and what is said where fleets are away, refuse a key, or share a name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from baton.errors import NotAllowed, NotFound, Unavailable
from baton.v1 import inference_pb2
from gateway.config import parse_config
from gateway.picker.config import parse_config as parse_picker
from gateway.serving.errors import NameTwice
from gateway.serving.fleet import CallerCredentials, Fleets
from tests.baton.scripted_service import Fail, ScriptedRouter, because
from tests.gateway.running import running_gateway
from tests.ports import free_port

REFUSED = Fail(grpc.StatusCode.PERMISSION_DENIED, "not you", (because("NOT_ALLOWED"),))
CONNECT_S = 1.0


def listing(name: str, *more: str, tenant: str = "") -> inference_pb2.ListModelsResponse:
    """Return the answer of a fleet that serves a model by these names, with an adapter."""
    model = inference_pb2.Model(name=name, more_names=more, adapters=["red"], fingerprint="f", vocab_size=8)
    return inference_pb2.ListModelsResponse(models=[model], tenant=tenant)


@asynccontextmanager
async def fleets_of(*routers: ScriptedRouter | str) -> AsyncIterator[Fleets]:
    addresses = [[each if isinstance(each, str) else each.address] for each in routers]
    async with Fleets(addresses, CallerCredentials(), CONNECT_S) as fleets:
        yield fleets


def nobody() -> str:
    return f"127.0.0.1:{free_port()}"


async def test_a_name_picks_its_fleet_and_may_be_left_out_for_one_fleet() -> None:
    async with ScriptedRouter(ListModels=listing("a", "x")) as one, ScriptedRouter() as two:
        two.answers["ListModels"] = listing("b")
        async with fleets_of(one) as fleets:
            assert (await fleets.model()).name == "a"
        async with fleets_of(one, two) as fleets:
            assert [*await fleets.told_models()] == ["a", "a:red", "x", "x:red", "b", "b:red"]
            for place, name in enumerate(("x:red", "b")):
                assert (await fleets.model(name)).fleet is fleets.all[place]
            for name in ("", "c"):
                with pytest.raises(NotFound, match=f"^model is '{name}'; accepted: 'a', 'a:red', 'x', "):
                    await fleets.model(name)


async def test_an_unknown_name_may_belong_to_a_fleet_that_never_responded() -> None:
    async with ScriptedRouter(ListModels=listing("a")) as one:
        async with fleets_of(one, nobody()) as fleets:
            with pytest.raises(Unavailable):
                await fleets.model("b")
            assert (await fleets.model("a")).fleet is fleets.all[0]
            assert [*await fleets.told_models()] == ["a", "a:red"]
        async with ScriptedRouter(ListModels=listing("b")) as two, fleets_of(one, two) as fleets:
            await fleets.told_models()
            await two.stop()
            with pytest.raises(NotFound):
                await fleets.model("c")
            with pytest.raises(Unavailable):
                await fleets.told_model("b")
            assert (await fleets.model("b")).fleet is fleets.all[1]  # the call itself says what is wrong


async def test_a_caller_learns_the_models_of_the_fleets_that_accept_the_key() -> None:
    async with (
        ScriptedRouter(ListModels=listing("a", tenant="acme")) as one,
        ScriptedRouter(ListModels=listing("b")) as two,
        fleets_of(two, one, nobody()) as fleets,
    ):
        await fleets.told_models()
        two.answers["ListModels"] = REFUSED
        assert await fleets.proven_tenant() == "acme"
        assert [*await fleets.told_models()] == ["a", "a:red"]
        with pytest.raises(NotAllowed):
            await fleets.told_model("b")
        one.answers["ListModels"] = REFUSED
        with pytest.raises(Unavailable):  # the fleet that is away may know the key
            await fleets.proven_tenant()
    async with ScriptedRouter(ListModels=REFUSED) as one, fleets_of(one, one) as fleets:
        for call in (fleets.proven_tenant, fleets.told_models):
            with pytest.raises(NotAllowed):
                await call()


async def test_a_name_that_a_second_fleet_takes_is_refused_when_it_is_seen() -> None:
    async with (
        ScriptedRouter(ListModels=listing("a")) as one,
        ScriptedRouter(ListModels=listing("b", "x")) as two,
        running_gateway([one.address], "--fleet", two.address) as gateway,
    ):
        two.answers["ListModels"] = listing("a", "x")
        assert (await gateway.http.get("/v1/models")).status_code == 200
        for name in ("a", "a:red"):
            response = await gateway.http.post("/v1/completions", json={"prompt": "p", "model": name})
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (500, "model_name_taken_twice"), error
            assert two.address not in error["message"]
        assert (await gateway.http.get("/v1/models/x")).status_code == 200
    async with ScriptedRouter(ListModels=listing("a")) as one, fleets_of(one, one) as fleets:
        with pytest.raises(
            NameTwice, match=f"'a', which the fleets of {one.address} and of {one.address} serve"
        ):
            await fleets.check_names()


def test_flags_name_the_routers_of_each_fleet() -> None:
    for parse in (parse_config, parse_picker):
        for flags, fleets in (
            ([], (("127.0.0.1:50051",),)),
            (["--router", "a:1", "--router", "a:2"], (("a:1", "a:2"),)),
            (["--fleet", "b:1,b:2", "--router", "a:1"], (("a:1",), ("b:1", "b:2"))),
            (["--fleet", "b:1,b:2", "--fleet", "c:1"], (("b:1", "b:2"), ("c:1",))),
        ):
            assert parse(flags).fleets == fleets
        for flags in (["--router", "b"], ["--router", "a:1", "--fleet", "b:1,"], ["--fleet", ""]):
            with pytest.raises(ValueError, match=rf"^{flags[-2]} is '.*'; accepted: HOST:PORT"):
                parse(flags)
