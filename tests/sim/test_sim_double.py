"""The simulator's Redis against fakeredis and a real server, whole simulations, word by word."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import pytest
from fakeredis import FakeServer, FakeStrictRedis
from redis.exceptions import RedisError, ResponseError

from sim.double import EPOCH_S, Command, Double, encoded, opened
from sim.network import scripts
from sim.world import World
from tests.broker.doubles import FakeClock, redis_time
from tests.servers import RedisServer, debian_redis, required

READ_WHOLE = {
    b"hash": ("HGETALL", "key"),
    b"zset": ("ZREVRANGE", "key", 0, -1, "WITHSCORES"),
    b"stream": ("XRANGE", "key", "-", "+"),
    b"string": ("GET", "key"),
    b"set": ("SMEMBERS", "key"),
}


class _ServedTime(FakeClock):
    """fakeredis's clock, which shows what the simulated Redis's clock shows."""

    def __init__(self, double: Double) -> None:
        super().__init__()
        self._double = double
        self.replayed_s: float | None = None

    def time(self) -> float:
        now_s = self._double.now_s() if self.replayed_s is None else EPOCH_S + self.replayed_s
        # fakeredis rounds TIME and cuts the ids of entries: a third of a microsecond behind one, both agree.
        return round(now_s * 1_000_000) / 1_000_000 + 3e-7

    def monotonic(self) -> float:
        return self.time()


class Other(Protocol):
    """A client of the server that the simulator's is compared with."""

    def execute_command(self, *args: Any) -> Any: ...

    def flushall(self) -> Any: ...

    def keys(self, pattern: str) -> Any: ...

    def type(self, name: bytes) -> Any: ...


class _Pair:
    """Says every command of a simulation to another server too."""

    def __init__(self, double: Double, clock: _ServedTime, other: Other) -> None:
        self.double, self.clock, self.fake = double, clock, other
        self._take, self._look, self._restore = double.take, double.look, double.restore
        self._sources = {script.sha.encode(): script.source for script in scripts().values()}
        self.compared = 0

    def take(self, name: str, command: Command) -> Any:
        return self._both(partial(self._take, name, command), command)

    def look(self, *args: Any) -> Any:
        return self._both(partial(self._look, *args), encoded(args))

    def restore(self, through: int) -> None:
        self._restore(through)
        self.fake.flushall()
        for at, command in self.double.journal:
            self.clock.replayed_s = at
            self._said(command)
        self.clock.replayed_s = None

    def _both(self, ours: Callable[[], Any], command: Command) -> Any:
        reply, error = _outcome(ours)
        told, refused = _outcome(partial(self._said, command))
        assert (told, type(refused)) == (reply, type(error)), command[:8]
        self.compared += 1
        if error is not None:
            raise error
        return reply

    def _said(self, command: Command) -> Any:
        """fakeredis is sent a script's text: it knows no digests beforehand."""
        name, *rest = command
        if name == b"EVALSHA":
            return self.fake.execute_command("EVAL", self._sources[rest[0]], *rest[1:])
        return self.fake.execute_command(name.decode(), *rest)


def _outcome(say: Callable[[], Any]) -> tuple[Any, RedisError | None]:
    try:
        return say(), None
    except RedisError as error:
        return None, error


@contextmanager
def _paired() -> Iterator[_Pair]:
    with opened() as double:
        clock = _ServedTime(double)
        with redis_time(clock), pytest.MonkeyPatch.context() as patched:
            pair = _Pair(double, clock, FakeStrictRedis(server=FakeServer(version=(7,)), protocol=2))
            _listens(pair, patched)
            yield pair


def _listens(pair: _Pair, patched: pytest.MonkeyPatch) -> None:
    for name in ("take", "look", "restore"):
        patched.setattr(pair.double, name, getattr(pair, name))


class _RealPair(_Pair):
    """A server whose clock nobody can set is told the time with each command.

    Its keys expire by its own clock, long after a simulation that takes seconds: none may that is used again,
    but for those of workers that listen, which end when the simulator's do.
    """

    def _both(self, ours: Callable[[], Any], command: Command) -> Any:
        for key in cast(list[bytes], self.fake.keys("*:near:*")):
            if not self._look("EXISTS", key):
                self.fake.execute_command("DEL", key)
        return super()._both(ours, command)

    def _said(self, command: Command) -> Any:
        now_us = round(self.clock.time() * 1_000_000)
        own_id = b"%d-*" % (now_us // 1000)
        name, *rest = command
        if name == b"PEXPIRE" or (name == b"EVALSHA" and rest[0] == scripts()["attend"].sha.encode()):
            rest[-1] = b"3600000"
        if name in (b"EVAL", b"EVALSHA"):
            source = self._sources.get(rest[0], rest[0])
            shown = b"{'%d', '%d'}" % divmod(now_us, 1_000_000)
            timed = source.replace(b"redis.call('TIME')", shown).replace(b"'*'", b"'%b'" % own_id)
            return self.fake.execute_command("EVAL", timed, *rest[1:])
        if name == b"XADD":
            rest = [own_id if word == b"*" else word for word in rest]
        return self.fake.execute_command(name.decode(), *rest)


@contextmanager
def _paired_with_a_server(folder: Path) -> Iterator[_Pair]:
    binary = required(debian_redis(), "redis-server")
    with (
        RedisServer(folder, binary) as server,
        closing(server.client()) as client,
        opened() as double,
        pytest.MonkeyPatch.context() as patched,
    ):
        pair = _RealPair(double, _ServedTime(double), client)
        _listens(pair, patched)
        yield pair


@pytest.mark.parametrize(
    ("workload", "seed"), [("family", 7), ("approvals", 15), ("archives", 7), ("jobs", 2)]
)
def test_simulated_redis_answers_every_command_as_fakeredis_does(workload: str, seed: int) -> None:
    with _paired() as pair:
        _is_lived(pair, workload, seed)


@pytest.mark.parametrize(
    ("workload", "seed"),
    [("family", 7), ("approvals", 15), ("budgets", 3), ("limits", 2), ("letters", 6), ("outages", 2)],
)
def test_simulated_redis_answers_every_command_as_a_real_server_does(
    workload: str, seed: int, tmp_path: Path
) -> None:
    with _paired_with_a_server(tmp_path) as pair:
        _is_lived(pair, workload, seed)


def _is_lived(pair: _Pair, workload: str, seed: int) -> None:
    outcome = World(seed, pair.double, workload).run()
    assert outcome.violation is None
    # Keys that are left are compared, too: a reply may hide that a value is another one.
    for key in cast(list[bytes], pair.fake.keys("*")):
        kind = cast(bytes, pair.fake.type(key))
        pair.look(*(word if word != "key" else key for word in READ_WHOLE[kind]))
    assert pair.compared > 100


def test_script_is_refused_a_global_of_its_own_and_the_order_of_a_tables_keys() -> None:
    with opened() as double:
        refused = ("left = 1", "return left", "return redis.call('FLUSHALL')", "return #nothing")
        for script in (*refused, "for key in pairs({a = 1}) do return key end", "return next({a = 1})"):
            with pytest.raises(ResponseError):
                double.run("EVAL", script, 0)
        assert double.run("EVAL", "return {1, 2.7, 'x', false, {}, nil, 9}", 0) == [1, 2, b"x", None, []]
        for reply, told in (
            ("true", 1),
            ("false", None),
            ("nil", None),
            ("-2.7", -2),
            ("{ok = 'yes'}", b"yes"),
        ):
            assert double.run("EVAL", f"return {reply}", 0) == told
        many = "local all = {} for i = 1, 9000 do all[i] = {i, 'x'} end return all"
        assert double.run("EVAL", many, 0) == [[i, b"x"] for i in range(1, 9001)]


@pytest.mark.parametrize(
    ("look", "args"), [("peek", (2, "due", "timed", 0, 8)), ("timers_due", (1, "timed", 8))]
)
def test_simulated_look_in_vain_is_answered_as_its_script_answers(look: str, args: tuple[Any, ...]) -> None:
    now = [0.0]
    script = scripts()[look]
    with opened() as double:
        double.reset(lambda: now[0])
        double.know(script.source, script.sha)

        def compare() -> bool:
            """Whether it is in vain. A text that is another by a comment is not known for a look."""
            reply = double.run("EVAL", script.source + b"\n--", *args)
            assert double.run("EVAL", script.source, *args) == reply
            unsent = double.idle_look(("EVALSHA", script.sha, *args))
            assert unsent in (None, reply)
            return unsent is not None

        found = [compare()]
        double.run("ZADD", "timed", (EPOCH_S + 5.0) * 1000, "s")
        for now[0] in (4.9994, 5.0, 5.001):
            found.append(compare())
        double.run("ZREM", "timed", "s")
        double.run("ZADD", "due", 9, "t")
        assert [*found, compare()] == [True, True, False, False, look == "timers_due"]


@pytest.mark.parametrize("limit", [(), ("LIMIT", 1, 2), ("LIMIT", 0, 9), ("LIMIT", 9, 1)])
@pytest.mark.parametrize(
    ("low", "high"), [("[a", "(c\xff"), ("(a", "[c"), ("[b", "[b"), ("(b", "(b"), ("[z", "[a"), ("[", "[z")]
)
def test_simulated_redis_lists_members_between_two_names_as_fakeredis_does(
    low: str, high: str, limit: tuple[Any, ...]
) -> None:
    with _paired() as pair:
        for member in ("b", "a", "c", "ab", "c1"):
            pair.take("ZADD", encoded(("ZADD", "key", 0, member)))
        for read in (("ZRANGEBYLEX", "key", low, high), ("ZREVRANGEBYLEX", "key", high, low)):
            pair.look(*read, *limit)
            pair.look(read[0], "none", *read[2:], *limit)
        assert pair.compared == 9


def test_text_with_a_time_to_live_is_there_until_then() -> None:
    with _paired() as pair:
        now = [0.0]
        pair.double.reset(lambda: now[0])
        pair.take("SET", encoded(("SET", "code", "first", "PX", 2_000)))
        pair.take("SET", encoded(("SET", "code", "second", "NX")))
        for now[0] in (1.999, 2.001):
            pair.look("GET", "code")
        pair.take("SET", encoded(("SET", "code", "third", "PX", 2_000)))
        pair.take("SET", encoded(("SET", "code", "fourth")))
        now[0] = 9.0
        pair.look("GET", "code")
        with pytest.raises(ResponseError):
            pair.take("SET", encoded(("SET", "code", "fifth", "SOON")))
        assert pair.look("GET", "code") == b"fourth"


def test_command_that_counts_may_have_many_words() -> None:
    members = range(5_001)
    with _paired() as pair:
        pair.take("SADD", encoded(("SADD", "set", *members, 0)))
        pair.take("HSET", encoded(("HSET", "hash", *(word for at in members for word in (at, -at)))))
        pair.take("HDEL", encoded(("HDEL", "hash", *members[1:], 1)))
        pair.take("HSET", encoded(("HSET", "text", "field", "value")))
        for key, kind in (("set", "SMEMBERS"), ("hash", "HGETALL")):
            pair.look(kind, key)
        with pytest.raises(ResponseError):
            pair.take("SADD", encoded(("SADD", "text", *members)))
    with opened() as double, pytest.raises(ResponseError, match="too many words for XADD"):
        double.run("XADD", "stream", "*", *members, 0)


def test_loading_a_part_of_the_journal_leaves_what_was_there_then() -> None:
    now = [0.0]
    with opened() as double:
        double.reset(lambda: now[0])
        double.run("HSET", "h", "f", 1)
        double.run("GET", "h2")
        now[0] = 1.0
        double.run("XADD", "s", "*", "f", 2)
        double.run("HSET", "h", "f", 3)
        assert [at for at, _ in double.journal] == [0.0, 1.0, 1.0]
        now[0] = 9.0
        double.restore(2)
        assert double.hash("h") == {b"f": b"1"}
        assert double.stream_after("s", 0) == [(b"1800000001000-0", {b"f": b"2"})]
