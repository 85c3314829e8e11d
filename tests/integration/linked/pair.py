"""A hub and an agent on a trial broker, with the models in a linked model's folder."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cloud_hub import app as hub_app
from cloud_hub.settings import EngineSettings, HubSettings, StoreSettings
from edge_agent.app import Agent, agent, load_device
from edge_agent.generate import Outcome, Preview, Progress
from edge_agent.maker import Wish
from edge_agent.settings import AgentSettings, DeviceSettings, GenerationSettings
from edge_agent.station import open_station
from fleet.decoding.noise import gumbel
from fleet.decoding.sampling import draw, sharpen
from fleet.models.conditions import Condition, Prompt
from fleet.models.transformer import Transformer, guide
from fleet.protocol.messages import Sampling
from fleet.transport.broker import BrokerSettings
from fleet.transport.mqtt import connect


class Quiet:
    """A caller who does not look."""

    def queued(self, ahead: int) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        pass

    def preview(self, preview: Preview) -> None:
        pass


@asynccontextmanager
async def hub_on(broker: BrokerSettings, folder: Path, data: Path) -> AsyncIterator[hub_app.Hub]:
    """The hub of `cloud_hub serve` with that model."""
    settings = HubSettings(
        data_dir=data,
        model=folder,
        store=StoreSettings(batch_wait_s=0.01),
        engine=EngineSettings(cache_mib=8, threads=1),
    )
    is_ready = asyncio.Event()
    with closing(hub_app.open_hub(settings)) as hub:
        async with connect(broker, client_id="hub", will=hub.identity.will) as transport:
            work = hub_app.serve(settings, transport, hub, ready=is_ready.set)
            task = asyncio.create_task(work, name="hub")
            try:
                await is_ready.wait()
                yield hub
            finally:
                task.cancel()
                await asyncio.wait([task])


@asynccontextmanager
async def agent_on(
    broker: BrokerSettings, folder: Path, state: Path, **generation: Any
) -> AsyncIterator[Agent]:
    """The agent of `edge_agent run` with the model's bundle."""
    patience = {"request_deadline_s": 20.0, "open_deadline_s": 20.0, "deadline_s": 60.0}
    settings = AgentSettings(
        state_dir=state,
        bundle=folder / "device",
        public_key=folder / "signing.pub",
        device=DeviceSettings(threads=1),
        generation=GenerationSettings(**{**patience, **generation}),
    )
    with open_station(settings.state_path, "node", patience_s=0) as station:
        async with (
            connect(broker, client_id="node", will=None) as transport,
            agent(settings, station, load_device(settings), transport, lambda _: None) as running,
        ):
            yield running


async def made(running: Agent, caption: str, policy: str, seed: int) -> Outcome:
    """A picture whose record was kept."""
    outcome, note = await running.maker.make(Wish(caption, seed, policy), Quiet())
    assert note == ""
    return outcome


@torch.inference_mode()
def cloud_picture(
    model: Transformer, pair: Condition | Prompt, sampling: Sampling, seed: int
) -> list[int]:
    """The tokens that a model draws by itself under the shared noise, without an engine."""
    config = model.config
    noise = gumbel(seed, np.arange(config.n_token), config.vocab_size)
    past = pair.start.new_zeros(config.n_layer, 2, 2, config.n_head, 0, config.head_dim)
    state, tokens = pair.start, []
    for position in range(config.n_token):
        logits = model.output(state)
        guided = guide(logits[:1], logits[1:], sampling.guidance).numpy()
        tokens.append(int(draw(sharpen(guided, sampling), noise[position : position + 1])[0]))
        hidden, rows = model.span(torch.full((2, 1), tokens[-1]), past, pair)
        past, state = torch.cat([past, rows], dim=4), hidden[:, 0]
    return tokens
