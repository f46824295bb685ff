"""The broker: six ports to one deployment, each for callers that need no other.

Takes every id and all randomness as arguments; the only clock is the caller's monotonic one, which
stretches Redis's time between replies. Starts no task and retries nothing by itself. The design
note is the package's docstring.
"""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.broker.claims import Claims
from orchestrator.broker.commits import Commits
from orchestrator.broker.connection import Connection
from orchestrator.broker.errors import Misconfigured
from orchestrator.broker.fleet_feed import FleetFeed
from orchestrator.broker.job_queue import Jobs
from orchestrator.broker.logs import Logs
from orchestrator.broker.notices import Listener
from orchestrator.broker.open_requests import Requests
from orchestrator.broker.port import Deployment
from orchestrator.broker.records import BrokerConfig
from orchestrator.broker.scripts import Argument
from orchestrator.broker.trees import Trees
from orchestrator.core.chain import ChainKey, mac, same_mac

_KEYED = "chain_key:"
"""Fields of the topology: the name of a key, and a code by which the same key is known again."""


class Broker:
    """All ports, and what belongs to the deployment as a whole."""

    def __init__(self, connection: Connection, config: BrokerConfig, monotonic: Callable[[], float]) -> None:
        deployment = Deployment(connection, config, monotonic)
        self.config = config
        self.keys = deployment.keys
        self.logs = Logs(deployment)
        self.claims = Claims(deployment, self.logs)
        self.commits = Commits(deployment, self.claims)
        self.trees = Trees(deployment, self.logs, self.claims)
        self.requests = Requests(deployment, self.logs)
        self.jobs = Jobs(deployment)
        self._connection = connection
        self._deployment = deployment
        self._keys_held: set[ChainKey | None] = set()

    def now_ms(self) -> int:
        """Redis's time as far as it is known here."""
        return self._deployment.now_ms()

    async def server_ms(self) -> int:
        """Redis's time now."""
        return await self._deployment.server_ms()

    def listener(self) -> Listener:
        """A listener to streams of notices, for one who waits for them."""
        return Listener(self._connection, self.keys)

    def fleet_feed(self, namespace: str | None = None) -> FleetFeed:
        """A feed of the changes of a namespace's sessions; of all of them if it is None."""
        monotonic = self._deployment.monotonic
        return FleetFeed(self._connection, self.keys, self.logs, monotonic, namespace)

    async def open(self, *, reads: bool = False) -> None:
        """Fixes the shard count at the first start ever; raises `Misconfigured` if it differs.

        Who only reads fixes nothing.
        """
        key = self.keys.topology()
        if not reads:
            await self._connection.command("HSETNX", key, "shards", self.config.shards)
        stored = int(await self._connection.command("HGET", key, "shards") or self.config.shards)
        if stored != self.config.shards:
            raise Misconfigured(
                f"this Redis was set up with {stored} shards and the setting says {self.config.shards}; "
                f"set it to {stored}"
            )

    async def hold_key(self, key: ChainKey | None, *, reads: bool = False) -> None:
        """Notes the key of this process's logs under its name, unless it only `reads`; None: they have none.

        Raises `Misconfigured` where other processes have another key of that name, or have one and this
        process has none: no worker of theirs could go on with a session that is made here, nor the reverse.
        A key of another name is one that follows theirs.
        """
        if key in self._keys_held:
            return
        topology = self.keys.topology()
        code = mac(key.secret, "deployment", key.id.encode()) if key is not None else ""
        if key is not None and not reads:
            await self._connection.command("HSETNX", topology, f"{_KEYED}{key.id}", code)
        fields = await self._connection.command("HGETALL", topology)
        told = {
            name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
            for name, value in fields.items()
        }
        noted = {name.removeprefix(_KEYED): value for name, value in told.items() if name.startswith(_KEYED)}
        if key is not None and not same_mac(noted.get(key.id, code), code):
            raise Misconfigured(
                f"chain.secret is not the key that other processes of this deployment call {key.id!r}: "
                "their sessions could not go on here, nor those of this process there; give it their "
                "value, or give a new key a name of its own by chain.key_id"
            )
        if key is None and noted:
            raise Misconfigured(
                f"the logs of this deployment are keyed by {max(noted)!r}, and no key is set here: their "
                "sessions could not go on here, nor those of this process there; set DENDRO_CHAIN_SECRET and "
                "DENDRO_CHAIN_KEY_ID as the other processes have them"
            )
        if not reads:
            self._keys_held.add(key)

    async def command(self, *args: Argument) -> object:
        """A plain read for tools such as doctor, which look at the server itself."""
        found: object = await self._connection.command(*args)
        return found

    async def aclose(self) -> None:
        await self.claims.aclose()
        await self._connection.aclose()
