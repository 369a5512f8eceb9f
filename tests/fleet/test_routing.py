"""Routing: what a request asks, what replicas can do, what drafts gain, who is busy."""

from collections import Counter

import pytest

from front_parts import request
from headlong.config import SamplingParams, StopParams
from headlong.errors import RequestError
from headlong.fleet.gain import Gains, kind_of
from headlong.fleet.replica import Replica, ReplicaState
from headlong.fleet.routing import HALF_SPEED, SLACK, Route, Router
from headlong.fleet.verdict import Aspect, Judgement, Outcome, Verdict
from headlong.fleet.vllm_dialect import VllmDialect

NO_TRY = 0.99
"""A random number that sends no request the other way."""


def replica(num_draft_tokens: int = 0, number: int = 0) -> Replica:
    url = f"http://10.0.{num_draft_tokens}.{number}:8000"
    verdict = Verdict(0.0) if num_draft_tokens else None
    return Replica(url, VllmDialect(), num_draft_tokens, state=ReplicaState.UP, verdict=verdict)


def gaining(factor: float) -> Gains:
    """Return gains as they are where drafts are so many times as fast."""
    gains = Gains()
    gains.observe(kind_of(request()), 1.0, 100, drafts=False)
    gains.observe(kind_of(request()), 1.0 / factor, 100, drafts=True)
    return gains


def choose(*replicas: Replica, gain: float = 2.0, draw: float = NO_TRY, **asked: object) -> Route:
    route = Router(replicas, gaining(gain)).choose(request(**asked), draw)  # type: ignore[arg-type]
    assert route is not None
    return route


def test_mtp_chooses_the_pool() -> None:
    plain, two, six = replica(), replica(2), replica(6)
    for mtp, place in (("off", plain), (2, two), (6, six), (16, six)):
        assert choose(plain, two, six, mtp=mtp).replica is place
    assert choose(plain, two, six, mtp=2).bound_reason is None
    assert "nearest that a replica here drafts is K=2" in str(
        choose(plain, two, mtp=3).bound_reason
    )


def test_fixed_k_is_held_against_the_plain_pool_too() -> None:
    """Only "auto" told `measured_speedup`."""
    plain, drafting = replica(), replica(4)
    assert choose(plain, drafting, mtp=4).plain_s == pytest.approx(0.01)


def test_replicas_that_were_not_probed_are_named_as_the_reason() -> None:
    plain, drafting = replica(), replica(4)
    drafting.verdict = None
    reason = choose(plain, drafting, mtp=4).off_reason
    assert reason == "No replica that drafts has been probed yet."
    assert drafting.obstacle == "The replica 10.0.4.0:8000 has not been probed yet."
    drafting.verdict = Verdict(0.0)
    assert drafting.obstacle is None


def test_replicas_that_are_probed_again_are_named_as_the_reason() -> None:
    plain, drafting = replica(), replica(4)
    drafting.is_isolated = True
    reason = choose(plain, drafting, mtp=4).off_reason
    assert reason == "The replicas that draft are being probed again."
    assert "while it is probed again" in str(drafting.obstacle)


def test_auto_goes_where_measured_gain_says() -> None:
    plain, drafting = replica(), replica(4)
    route = choose(plain, drafting, gain=1.5)
    assert route.replica is drafting
    assert "1.50 × with drafts: 6.7 ms a token against 10.0 ms" in route.explanation
    assert route.plain_s == pytest.approx(0.01)
    route = choose(plain, drafting, gain=0.8)
    assert route.replica is plain
    assert "does not pay here" in str(route.off_reason)


def test_few_requests_go_the_other_way_to_measure_it() -> None:
    plain, drafting = replica(), replica(4)
    assert choose(plain, drafting, gain=2.0, draw=0.01).replica is plain
    assert choose(plain, drafting, gain=0.5, draw=0.01).replica is drafting
    unknown = Router((plain, drafting), Gains())
    draws = [number / 100 for number in range(100)]
    places = Counter(route.replica for draw in draws if (route := unknown.choose(request(), draw)))
    assert places[plain] == 25


def test_auto_leaves_drafts_where_they_are_busier_than_they_gain() -> None:
    plain, drafting = replica(), replica(4)
    drafting.num_in_flight = HALF_SPEED // 4
    assert choose(plain, drafting, gain=1.5).replica is drafting
    drafting.num_in_flight = HALF_SPEED
    route = choose(plain, drafting, gain=1.5)
    assert route.replica is plain
    assert "busier" in str(route.off_reason)


def test_requests_that_begin_alike_share_a_replica_while_it_is_not_busier() -> None:
    pool = [replica(number=number) for number in range(4)]
    at_home = choose(*pool).replica
    assert {choose(*pool).replica for _ in range(5)} == {at_home}
    at_home.num_in_flight = SLACK
    assert choose(*pool).replica is at_home
    at_home.num_in_flight = SLACK + 1
    assert choose(*pool).replica is not at_home
    at_home.num_in_flight = 0
    router = Router(pool, Gains())
    routes = [router.choose(request(number), NO_TRY) for number in range(60)]
    assert len({route.replica for route in routes if route is not None}) == 4


def test_what_a_drafting_replica_lacks_sends_a_request_to_a_plain_one() -> None:
    plain, drafting = replica(), replica(4)
    biased = SamplingParams(logit_bias={5: 1.0})
    for mtp in (4, "auto"):
        route = choose(plain, drafting, mtp=mtp, sampling=biased)
        assert route.replica is plain
        assert "lack logit_bias" in str(route.off_reason)


def test_failed_probe_keeps_the_requests_away_that_it_concerns() -> None:
    plain, drafting = replica(), replica(4)
    failed = Judgement(Aspect.SAMPLED, Outcome.FAILED, "Off by 2 nats.")
    drafting.verdict = Verdict(0.0, (failed,))
    sampled = SamplingParams(temperature=0.7)
    assert choose(plain, drafting, mtp=4).replica is drafting
    route = choose(plain, drafting, mtp=4, sampling=sampled)
    assert route.replica is plain
    assert "failed the probe: Off by 2 nats." in str(route.off_reason)
    assert Router((drafting,), Gains()).choose(request(sampling=sampled), NO_TRY) is None


def test_replica_gets_nothing_while_it_is_not_well_or_not_probed() -> None:
    drafting = replica(4)
    router = Router((drafting,), Gains())
    drafting.verdict = None
    assert router.choose(request(), NO_TRY) is None
    drafting.verdict = Verdict(0.0)
    for state in (ReplicaState.STARTING, ReplicaState.DOWN):
        drafting.state = state
        assert router.choose(request(), NO_TRY) is None
    assert router.choose(request(), NO_TRY, without=[drafting]) is None


def test_suspect_replica_is_the_last_resort() -> None:
    suspect, well = replica(), replica(number=1)
    suspect.state = ReplicaState.SUSPECT
    assert choose(suspect, well).replica is well
    assert choose(suspect).replica is suspect


def test_only_drafting_replicas_stand_in_for_plain_ones_and_say_so() -> None:
    route = choose(replica(4), mtp="off")
    assert route.explanation.startswith("Drafts, though the request asked for none")


def test_replica_of_little_context_gets_short_requests_only() -> None:
    short, long = replica(), replica(number=1)
    short.max_tokens = 100
    lasting = StopParams(max_tokens=200)
    assert {choose(short, long, stopping=lasting).replica for _ in range(5)} == {long}


def test_what_nobody_has_is_refused_by_name() -> None:
    router = Router((replica(), replica(4)), Gains())
    with pytest.raises(RequestError, match="needs embeddings, which no engine"):
        router.check(request(pooling="mean"))
    router.check(request(sampling=SamplingParams(temperature=1.0, min_p=0.1)))
