from __future__ import annotations

import math
import random

import pytest

from rlinf_core.errors import ConfigError
from rlinf_core.schedule.curve import Coefficients, Fit, Table
from rlinf_core.schedule.profile import (
    Measurement,
    Profile,
    WrittenCurve,
    check_fingerprint,
    fingerprint,
)


def seconds(samples: int, devices: int, chunk: int = 0) -> float:
    """0.5 s + 20 ms a sample + 30 ms a call + 0.1 s where there are several ranks."""
    share = math.ceil(samples / devices)
    calls = math.ceil(share / chunk) if chunk else 1
    return 0.5 + 0.02 * share + 0.03 * calls + 0.1 * (devices > 1)


def measured(points, noise=lambda: 1.0) -> Profile:
    return Profile(
        tuple(
            Measurement("rollout", devices, samples, seconds(samples, devices, chunk) * noise(), chunk)
            for devices, samples, chunk in points
        )
    )


def only_fit(profile: Profile) -> Fit:
    law = profile.curve("rollout", "cpu").laws[1]
    assert isinstance(law, Fit)
    return law


GRID = [(devices, samples, chunk) for devices in (1, 2, 4) for samples in (64, 128) for chunk in (4, 16)]


def test_a_fit_finds_the_coefficients_of_the_data():
    fit = only_fit(measured(GRID))
    assert fit.residual < 1e-12
    assert (fit.coefficients.fixed_s, fit.coefficients.per_sample_s) == pytest.approx((0.5, 0.02))
    assert (fit.coefficients.per_call_s, fit.coefficients.parallel_s) == pytest.approx((0.03, 0.1))


def test_far_from_all_measurements_the_fit_speaks():
    curve = measured(GRID).curve("rollout", "cpu")
    assert curve.seconds(1000, 7, 10) == pytest.approx(0.5 + 0.02 * 143 + 0.03 * 15 + 0.1)


def test_samples_are_whole_so_the_fullest_rank_counts():
    curve = measured(GRID).curve("rollout", "cpu")
    assert curve.seconds(10, 4, 3) == pytest.approx(0.5 + 0.02 * 3 + 0.03 + 0.1)  # 3, 3, 2, 2
    assert curve.seconds(12, 4, 3) == curve.seconds(10, 4, 3)
    assert curve.seconds(13, 4, 3) == pytest.approx(0.5 + 0.02 * 4 + 0.03 * 2 + 0.1)


def test_from_one_measurement_time_follows_the_samples_of_a_rank():
    curve = Profile((Measurement("rollout", 1, 64, 3.2),)).curve("rollout", "cpu")
    assert curve.seconds(64, 1) == pytest.approx(3.2)
    assert curve.laws[1].coefficients == Coefficients(per_sample_s=pytest.approx(0.05))
    assert curve.seconds(64, 2) == pytest.approx(1.6)


def test_two_device_counts_support_a_fixed_part_but_no_price_of_being_parallel():
    fit = only_fit(Profile((Measurement("rollout", 1, 64, 3.0), Measurement("rollout", 2, 64, 2.0))))
    assert fit.coefficients == Coefficients(
        fixed_s=pytest.approx(1.0), per_sample_s=pytest.approx(1 / 32), per_call_s=0.0, parallel_s=0.0
    )


def test_no_coefficient_is_negative_where_more_samples_took_less_time():
    fit = only_fit(Profile((Measurement("rollout", 1, 32, 2.0), Measurement("rollout", 1, 64, 1.0))))
    # constant c with least (c/2 - 1)^2 + (c - 1)^2: c = 6/5
    assert fit.coefficients == Coefficients(fixed_s=pytest.approx(1.2))
    assert fit.residual == pytest.approx(math.sqrt((0.4**2 + 0.2**2) / 2))


def test_small_times_count_as_much_as_large_ones():
    fit = only_fit(Profile((Measurement("rollout", 1, 1, 0.02), Measurement("rollout", 1, 1000, 10.0))))
    assert fit.coefficients.per_sample_s == pytest.approx(9.98 / 999)
    assert fit.coefficients.fixed_s == pytest.approx(0.02 - 9.98 / 999)


def test_repeated_measurements_count_by_their_median():
    runs = (3.2, 3.1, 99.0)
    curve = Profile(tuple(Measurement("rollout", 1, 64, s) for s in runs)).curve("rollout", "cpu")
    assert curve.seconds(64, 1) == pytest.approx(3.2)


def test_measured_points_are_met_exactly_where_the_fit_is_off():
    # a cache effect that no term explains: 2 devices are 30 % slower than the fit of the others
    points = [(1, 64, 0), (1, 128, 0), (2, 64, 0), (2, 128, 0)]
    times = {p: seconds(*p) * (1.3 if p == (2, 128, 0) else 1.0) for p in points}
    profile = Profile(tuple(Measurement("rollout", *p[:2], times[p]) for p in points))
    curve = profile.curve("rollout", "cpu")
    for devices, samples, _ in points:
        assert curve.seconds(samples, devices) == pytest.approx(times[devices, samples, 0], rel=1e-12)
    assert 0.02 < curve.residual < 0.3


def test_between_measured_points_the_correction_is_continuous_and_bounded():
    points = [(1, n, 0) for n in (16, 64, 256)]
    times = [1.0, 5.0, 12.0]
    profile = Profile(tuple(Measurement("rollout", 1, p[1], t) for p, t in zip(points, times, strict=True)))
    curve, fit = profile.curve("rollout", "cpu"), only_fit(profile)
    ratios = [ratio for _, ratio in fit.ratios]
    before = curve.seconds(16, 1)
    for samples in range(17, 257):
        now = curve.seconds(samples, 1)
        assert abs(now - before) < 0.2
        bare = fit.coefficients.fixed_s + fit.coefficients.per_sample_s * samples
        assert min(1.0, *ratios) * bare <= now <= max(1.0, *ratios) * bare
        before = now


def test_with_noise_the_fit_predicts_other_device_counts():
    noise = random.Random(3)
    profile = measured(GRID * 5, lambda: noise.uniform(0.95, 1.05))
    curve = profile.curve("rollout", "cpu")
    assert curve.residual < 0.05
    for devices, samples, chunk in [(3, 96, 8), (8, 256, 8), (1, 32, 32)]:
        assert curve.seconds(samples, devices, chunk) == pytest.approx(
            seconds(samples, devices, chunk), rel=0.05
        )


def test_model_parallel_groups_are_ranks():
    profile = Profile(
        (
            Measurement("actor", 4, 64, 8.0, model_parallel=2),
            Measurement("actor", 8, 64, 4.5, model_parallel=2),
        )
    )
    curve = profile.curve("actor", "cpu")
    assert curve.seconds(64, 4, model_parallel=2) == pytest.approx(8.0)  # 2 ranks of 32
    assert curve.seconds(64, 16, model_parallel=2) == pytest.approx(
        1.0 + 7 / 32 * 8
    )  # fixed 1 s, 7/32 s each
    with pytest.raises(ConfigError, match="1 devices cannot hold a model that is split over 2"):
        curve.seconds(64, 1, model_parallel=2)


def test_an_unmeasured_model_parallel_size_is_as_fast_per_device_as_the_nearest_measured():
    curve = Profile((Measurement("actor", 4, 64, 8.0),)).curve("actor", "cpu")
    assert curve.seconds(64, 4, model_parallel=2) == pytest.approx(8.0)
    assert curve.seconds(64, 8, model_parallel=4) == pytest.approx(4.0)


def test_an_unmeasured_model_parallel_size_makes_as_many_calls_as_a_measured_one():
    ms = [Measurement("actor", 1, 64, 0.1 * 64 + 1.0 * 64 / chunk, chunk) for chunk in (4, 8, 16)]
    curve = Profile(tuple(ms)).curve("actor", "cpu")
    # 2 devices as one rank: 64 samples in calls of 8 are 8 calls, each device doing half the work
    assert curve.seconds(64, 2, 8, model_parallel=2) == pytest.approx(0.1 * 32 + 8)


def test_a_table_is_met_at_its_counts_and_a_power_law_between_them():
    table = Table(512, ((1, 100.0), (4, 25.0), (8, 20.0)))
    curve = Profile(curves=(WrittenCurve("rollout", table, "H100"),)).curve("rollout", "H100")
    assert [curve.seconds(512, n) for n in (1, 4, 8)] == pytest.approx([100, 25, 20])
    assert curve.seconds(512, 2) == pytest.approx(50)
    assert curve.seconds(512, 64) == pytest.approx(20)
    assert curve.seconds(256, 4) == pytest.approx(12.5)
    assert curve.residual == 0.0


def test_below_its_smallest_count_a_table_scales_with_the_devices():
    curve = Profile(curves=(WrittenCurve("rollout", Table(512, ((8, 10.0),))),)).curve("rollout", "cpu")
    assert curve.seconds(512, 2) == pytest.approx(40)


def test_measurements_stand_before_what_was_written():
    written = WrittenCurve("rollout", Coefficients(per_sample_s=1.0))
    profile = Profile((Measurement("rollout", 1, 10, 5.0),), curves=(written,))
    assert profile.curve("rollout", "cpu").seconds(10, 1) == pytest.approx(5.0)
    assert Profile(curves=(written,)).curve("rollout", "cpu").seconds(10, 2) == pytest.approx(5.0)


def test_an_unknown_component_is_an_error_that_tells_what_is_known():
    profile = measured([(1, 64, 0)])
    with pytest.raises(ConfigError, match="how long 'actor' takes on 'cpu'; it knows: rollout on cpu"):
        profile.curve("actor", "cpu")
    assert profile.device_types("rollout") == ("cpu",)
    assert profile.device_types("actor") == ()


def test_nothing_to_do_takes_no_time():
    assert measured([(1, 64, 0)]).curve("rollout", "cpu").seconds(0, 2) == 0.0


def test_new_measurements_replace_the_oldest_at_their_point():
    old = [Measurement("rollout", 1, 64, 1.0)] * 4 + [Measurement("rollout", 2, 64, 0.6)]
    profile = Profile(tuple(old)).adding([Measurement("rollout", 1, 64, 2.0)] * 3)
    assert [one.seconds for one in profile.measurements] == [1.0, 1.0, 2.0, 2.0, 2.0, 0.6]
    assert profile.curve("rollout", "cpu").seconds(64, 1) == pytest.approx(2.0)


def test_a_component_that_slowed_down_does_so_everywhere():
    written = WrittenCurve("actor", Table(64, ((1, 8.0),)))
    profile = Profile(
        (Measurement("rollout", 1, 64, 1.0), Measurement("rollout", 2, 64, 0.6)), curves=(written,)
    )
    slower = profile.scaled({"rollout": 1.5})
    assert slower.curve("rollout", "cpu").seconds(64, 2) == pytest.approx(0.9)
    assert slower.curve("rollout", "cpu").seconds(640, 1) == pytest.approx(
        1.5 * profile.curve("rollout", "cpu").seconds(640, 1)
    )
    assert slower.curve("actor", "cpu").seconds(64, 1) == pytest.approx(8.0)
    assert profile.scaled({"actor": 0.5}).curve("actor", "cpu").seconds(64, 1) == pytest.approx(4.0)


def test_a_profile_of_something_else_is_refused_with_what_differs():
    ours = fingerprint(hardware="2 cpu", model="tiny", samples=64)
    theirs = fingerprint(hardware="8 H100", model="tiny", prompts=8)
    check_fingerprint(Profile(fingerprint=ours), ours, "profile.yaml")
    check_fingerprint(Profile(), ours, "profile.yaml")
    with pytest.raises(ConfigError) as caught:
        check_fingerprint(Profile(fingerprint=theirs), ours, "profile.yaml")
    assert "profile.yaml was made for something else (hardware: 8 H100 there, 2 cpu here; " in str(
        caught.value
    )
    assert "prompts: 8 there, nothing here; samples: nothing there, 64 here)" in str(caught.value)
    with pytest.raises(ConfigError, match="fingerprint: by hand there, nothing here"):
        check_fingerprint(Profile(fingerprint="by hand"), ours, "profile.yaml")
