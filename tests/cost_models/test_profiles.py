"""Hardware profiles: they load, print and parse back; what is wrong with a file is said clearly."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.errors import CostModelError, ProfileError, UnknownHardwareError
from cost_models.hardware import (
    Device,
    Fit,
    Hardware,
    Link,
    Share,
    Tier,
    detect,
    load,
    named,
    names,
    parse,
    save,
    text,
    to_text,
)
from cost_models.names import KINDS

positive = st.floats(min_value=1e-9, max_value=1e18, allow_subnormal=False)
fraction = st.floats(min_value=0, max_value=1)
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@st.composite
def links(draw: st.DrawFn) -> Link:
    kinds = st.sampled_from(["all_reduce", "all_gather", "send"])
    ranks, busy = st.integers(2, 99), st.integers(1, 99)
    fits = st.lists(
        st.builds(Fit, kinds, ranks, fraction, positive, busy, fraction),
        max_size=2,
        unique_by=lambda fit: (fit.collective, fit.ranks, fit.host_ranks),
    )
    return Link(draw(positive), draw(fraction), tuple(draw(fits)), draw(words))


@st.composite
def machines(draw: st.DrawFn) -> Hardware:
    bytes_per_s = draw(positive)
    device = Device(
        name=draw(words),
        kind=draw(st.sampled_from(KINDS)),
        memory_bytes=draw(positive),
        flops_per_s={"float32": draw(positive)}
        | draw(st.dictionaries(st.sampled_from(["float32", "int8"]), positive, min_size=1)),
        bytes_per_s=bytes_per_s,
        matmul_efficiency=draw(st.floats(min_value=0.01, max_value=1)),
        launch_s=draw(fraction),
        overlap=draw(fraction),
        cache_bytes=draw(positive),
        cache_bytes_per_s=bytes_per_s * draw(st.floats(min_value=1, max_value=9)),
        behind=draw(fraction),
        expert_imbalance=draw(fraction),
        late_s=draw(fraction),
    )
    wider = st.integers(min_value=100, max_value=999)
    tiers = st.lists(
        st.builds(Tier, wider, positive, fraction, words),
        max_size=2,
        unique_by=lambda tier: tier.devices,
    )
    shares = st.builds(Share, positive, positive, positive, fraction, fraction, fraction, fraction)
    return Hardware(
        device=device,
        devices_per_host=draw(st.integers(min_value=1, max_value=99)),
        intra_host=draw(links()),
        inter_host=draw(links()),
        source=draw(words),
        date=draw(st.dates()).isoformat(),
        cores=draw(st.integers(min_value=0, max_value=99)),
        shared=draw(st.dictionaries(st.integers(min_value=1, max_value=99), shares, max_size=2)),
        tiers=tuple(draw(tiers)),
    )


@pytest.mark.parametrize("name", names())
def test_shipped_profile_prints_and_parses_back(name: str) -> None:
    hardware = load(name)
    assert hardware.device.name == name
    assert parse(to_text(hardware), "printed") == hardware


@pytest.mark.thorough
@given(machines())
def test_any_profile_prints_and_parses_back(hardware: Hardware) -> None:
    assert parse(to_text(hardware), "printed") == hardware


@pytest.mark.parametrize("name", names())
def test_shipped_profile_states_source_and_date(name: str) -> None:
    hardware = load(name)
    assert re.search("datasheet|measured", hardware.source), "`source` says which of the two it is"
    assert datetime.date.fromisoformat(hardware.date) <= datetime.date.today()


GPUS = {
    # name: memory, bytes/s, float16, float64 and links of one direction, GB/s, from the datasheets
    "v100": (16, 900, 125, 7.8, 150, 25 / 8 / 8),
    "v100_32": (32, 900, 125, 7.8, 150, 4 * 100 / 8 / 8),
    "a100_40": (40, 1555, 312, 19.5, 300, 25),
    "a100": (80, 2039, 312, 19.5, 300, 25),
    "h100": (80, 3350, 989, 67, 450, 50),
    "h100_96": (96, 2400, 989, 67, 450, 50),
    "h200": (141, 4800, 989, 67, 450, 50),
    "b200": (180, 8000, 2250, 37, 900, 50),
    "mi300x": (192, 5300, 1307.4, 163.4, 448, 50),
}


@pytest.mark.parametrize("name", GPUS)
def test_datasheet_figures(name: str) -> None:
    """Dense tensor-core peaks, and NVLink in one direction: half of what NVIDIA prints."""
    memory, speed, half, double, inside, between = (1e9 * figure for figure in GPUS[name])
    hardware = load(name)
    device = hardware.device
    assert device.kind == "cuda" and device.memory_bytes == memory and device.bytes_per_s == speed
    assert device.flops_per_s["float16"] == pytest.approx(1e3 * half)
    assert device.flops_per_s["float64"] == pytest.approx(1e3 * double)
    has_cores = "v100" not in name
    like = device.flops_per_s["float16" if has_cores else "float32"]
    assert device.flops_per_s["bfloat16"] == like
    assert hardware.intra_host.bytes_per_s == inside
    assert hardware.inter_host.bytes_per_s == pytest.approx(between)
    assert hardware.devices_per_host == 8
    assert hardware.inter_host.bytes_per_s < hardware.intra_host.bytes_per_s < device.bytes_per_s
    assert hardware.device_shared_by(8) == device, "GPUs of one host do not slow each other down"
    assert all(link.kind for _, link in hardware.borders)


def test_every_profile_is_checked_here() -> None:
    assert set(names()) == {*GPUS, "cpu"}


@pytest.mark.parametrize(
    ("driver", "gb", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", 42, "a100_40"),
        ("NVIDIA A100-SXM4-80GB", 85, "a100"),
        ("Tesla V100-SXM2-32GB", 34, "v100_32"),
        ("NVIDIA H100 80GB HBM3", 85, "h100"),
        ("NVIDIA H100", 100, "h100_96"),
        ("NVIDIA H200", 150, "h200"),
        ("NVIDIA B200", 192, "b200"),
        ("AMD Instinct MI300X", 206, "mi300x"),
        ("NVIDIA GeForce RTX 4090", 25, None),
        ("NVIDIA H100 PCIe", 85, None),
        ("NVIDIA H100 NVL", 100, None),
        ("NVIDIA A100-PCIE-40GB", 42, None),
        ("NVIDIA GH200 480GB", 100, None),
        ("NVIDIA GB200", 192, None),
        ("Tesla V100-SXM2-16GB", 17, "v100"),
        ("Tesla V100-FHHL-16GB", 17, None),
        ("NVIDIA H100 CNX", 85, None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 5.1, None),
        ("NVIDIA H100 80GB HBM3 MIG 7g.80gb", 85, None),
        ("GRID A100-10C", 10.7, None),
        ("NVIDIA A100-40C", 42, None),
        ("NVIDIA A100-SXM-64GB", 68, None),
        ("NVIDIA H100 64GB HBM3", 68.7, None),
        ("AMD Instinct MI300X", 25.7, None),
    ],
)
def test_a_device_is_known_by_its_name_and_memory(driver: str, gb: float, name: str | None) -> None:
    assert named(driver, gb * 1e9) == name


def test_text_keeps_the_comments_that_name_sources(tmp_path: Path) -> None:
    assert "# HBM3e" in text("h200")
    path = tmp_path / "mine.toml"
    path.write_text(text("h200"))
    assert text(path) == text("h200") and load(path) == load("h200")
    path.write_text("{not toml")
    with pytest.raises(ProfileError, match="not TOML"):
        text(path)


def test_cpu_profile_knows_what_ranks_share() -> None:
    hardware = load("cpu")
    alone, crowded = hardware.device_shared_by(1), hardware.device_shared_by(4)
    assert crowded.flops_per_s["float32"] < 0.75 * alone.flops_per_s["float32"]
    assert crowded.launch_s > alone.launch_s
    assert crowded.memory_bytes == alone.memory_bytes / 4
    measured = {(fit.collective, fit.ranks, fit.host_ranks) for fit in hardware.intra_host.fits}
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    assert measured == {(k, *n) for k in kinds for n in [(2, 2), (4, 4), (2, 4)]}


def test_more_ranks_than_were_measured_share_the_cores() -> None:
    share = Share(flops=0.5, bytes=0.5, launch=2.0, overlap=0.1)
    hardware = replace(load("cpu"), cores=2, shared={4: share})
    four, eight = hardware.device_shared_by(4), hardware.device_shared_by(8)
    assert eight.flops_per_s["float32"] == four.flops_per_s["float32"] / 2
    assert eight.bytes_per_s == four.bytes_per_s / 2
    many = replace(hardware, cores=64)
    assert many.device_shared_by(8).flops_per_s == many.device_shared_by(4).flops_per_s


def test_link_keeps_the_fits_measured_under_the_nearest_load() -> None:
    fits = (Fit("all_reduce", 2, 1.0, 1.0, 2), Fit("all_reduce", 2, 2.0, 1.0, 4))
    link = Link(1.0, 1.0, fits)
    assert [fit.latency_s for fit in link.shared_by(2).fits] == [1.0]
    assert [fit.latency_s for fit in link.shared_by(8).fits] == [2.0]


def test_what_was_measured_of_a_collective_is_read_back_and_must_rise() -> None:
    def with_curve(*curve: tuple[float, float]) -> Hardware:
        fit = Fit("all_reduce", 2, 1e-3, 1e9, 2, 0.1, curve)
        return replace(load("h100"), intra_host=replace(load("h100").intra_host, fits=(fit,)))

    hardware = with_curve((1024, 1e-3), (4096.0, 1e-3))
    assert parse(to_text(hardware), "mine") == hardware
    for wrong in (((4096, 1e-3), (1024, 2e-3)), ((1024, 2e-3), (4096, 1e-3)), ((0, 1e-3),)):
        with pytest.raises(ProfileError, match=r"intra_host\.fits\.curve"):
            with_curve(*wrong).check()
    for pair in ("1024", "[1024]", "[1024, 'slow']"):
        with pytest.raises(ProfileError, match=r"fits\.curve"):
            parse(to_text(hardware).replace("[1024, 0.001]", pair), "mine")


def test_unknown_name_suggests_and_lists() -> None:
    with pytest.raises(
        UnknownHardwareError, match=r"'a10'.*mean 'a100'.*cpu, h100.*calibrate.*hardware h100"
    ):
        load("a10")


FIT = """
[[intra_host.fits]]
collective = "{}"
ranks = 2
latency_s = 1e-5
bytes_per_s = 1e9
"""


def _swap(old: str, new: str) -> Callable[[str], str]:
    def swap(profile: str) -> str:
        assert old in profile
        return profile.replace(old, new, 1)

    return swap


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: "", r"\[device\] is missing"),
        (lambda _: "{not toml", "is not TOML"),
        (lambda _: '[project]\nname = "foreign"', r"\[device\] is missing"),
        (lambda p: p[: len(p) // 3], r"missing|is not TOML"),
        (_swap("80000000000.0", '"much"'), "device.memory_bytes is 'much', not a number"),
        (_swap("80000000000.0", "true"), "device.memory_bytes is True, not a number"),
        (_swap("80000000000.0", "-1"), "device.memory_bytes is -1, not positive"),
        (_swap("80000000000.0", "inf"), "device.memory_bytes is inf"),
        (_swap("80000000000.0", "nan"), "device.memory_bytes is nan"),
        (_swap("memory_bytes", "memory"), "device.memory is unknown; known are name"),
        (_swap("launch_s", "start_s"), "device.start_s is unknown"),
        (_swap("overlap = 0.8", "overlap = 1.8"), "device.overlap is 1.8, not between 0 and 1"),
        (
            lambda p: re.sub("launch_s = .*", "launch_s = 1e308", p),
            "launch_s is 1e\\+308, not zero or more seconds, an hour at most",
        ),
        (_swap("devices_per_host = 8", "devices_per_host = 8.5"), "not a whole number"),
        (_swap("devices_per_host = 8", ""), "devices_per_host is missing"),
        (_swap('date = "', 'when = "'), "when is unknown"),
        (lambda p: re.sub('date = ".*"', 'date = ""', p), "must state its source and its date"),
        (lambda p: re.sub('date = ".*"', 'date = "yesterday"', p), "write it as 2026-11-27"),
        (lambda p: re.sub('source = ".*"', "source = 7", p), "source is 7, not text"),
        (lambda p: re.sub(r"\nb?float\w+ = .*", "", p), "has no device.flops_per_s"),
        (_swap("float32 = ", "float32 = 0 # "), "device.flops_per_s.float32 is 0, not positive"),
        (_swap("float32 = ", 'float32 = "x" # '), "float32 is 'x', not a number"),
        (_swap("[inter_host]", "[between]"), "inter_host"),
        (lambda p: re.sub(r"\[intra_host\][^\[]*", "intra_host = 3\n", p), "intra_host"),
        (lambda p: p + "\n[shared.four]\nflops = 1.0\n", r"shared.four.*number of ranks"),
        (lambda p: p + "\n[shared.4]\nflops = 1.0\n", r"shared.4.bytes is missing"),
        (lambda p: p + "\n[[inter_host.fits]]\nranks = 2\n", r"inter_host.fits\[0\].*is missing"),
        (lambda p: p + "\n[[tiers]]\ndevices = 64\n", r"tiers\[1\].bytes_per_s is missing"),
        (_swap("devices = 160", "devices = 0"), r"tiers\[0\].devices is 0, not positive"),
        (_swap("devices = 160", "devices = 8"), "have the same number of devices"),
        (_swap("devices = 160", "hosts = 20"), r"tiers\[0\].hosts is unknown; known are devices"),
        (lambda p: "tiers = 3\n" + p.split("[[tiers]]")[0], "tiers is 3, not a list of tables"),
        (_swap('kind = "InfiniBand HDR"', "kind = 7"), "inter_host.kind is 7, not text"),
        (lambda p: p.replace("cache_bytes = 0.0", "cache_bytes = 1.0"), "cache_bytes_per_s is below"),
        (_swap("\nbfloat16 =", "\nbf16 ="), r"flops_per_s.bf16 is not a dtype .* mean 'bfloat16'"),
        (_swap("\nbfloat16 =", '\n"torch.bfloat16" ='), r"torch.bfloat16 is not .* mean 'bfloat16'"),
        (_swap("\nbfloat16 =", '\n"b f" ='), "flops_per_s.b f is not a dtype of torch"),
        (lambda p: p + FIT.format("allreduce"), r"intra_host.fits: 'allreduce' is .* 'all_reduce'"),
        (
            lambda p: p + FIT.format("send").replace("ranks = 2", "ranks = 1"),
            "intra_host.fits.ranks is 1, not two or more",
        ),
        (
            lambda p: p + FIT.format("send") + "curve = [[1024, nan]]",
            r"fits.curve: the rise to \(1024, nan\) is nan, not zero or more",
        ),
        (lambda p: p + 2 * FIT.format("send"), "has two of send among 2 ranks while 2 are busy"),
        (_swap("80000000000.0", "1" + "0" * 400), r"device.memory_bytes is beyond 1.8e\+308"),
        (_swap("devices_per_host = 8", "devices_per_host = 0x" + "f" * 5000), "per_host is beyond"),
        (_swap("80000000000.0", "1" + "0" * 5000), "is not TOML: Exceeds the limit"),
        (_swap("80000000000.0", "[" * 100_000), "is not TOML"),
        (lambda p: p + f"\n[shared.{'9' * 400}]\nflops = 1.0\n", "named for a number of ranks"),
        (_swap('kind = "NVLink', 'at_least = 1\nkind = "NVLink'), "is 1, not true or false"),
    ],
)  # fmt: skip
def test_bad_file_names_itself_the_key_and_the_remedy(
    change: Callable[[str], str], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(change(to_text(load("a100"))))
    with pytest.raises(ProfileError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value) and "autopar calibrate" in str(caught.value)


@pytest.mark.thorough
@given(st.data())
def test_no_damage_to_a_file_ends_in_another_error(data: st.DataObject) -> None:
    whole = to_text(load("cpu"))
    start = data.draw(st.integers(min_value=0, max_value=len(whole)))
    end = data.draw(st.integers(min_value=start, max_value=len(whole)))
    damaged = whole[:start] + data.draw(st.text(max_size=5)) + whole[end:]
    try:
        parse(damaged, "damaged").check()
    except CostModelError as error:
        assert "damaged" in str(error)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    for path in (tmp_path / "missing.toml", tmp_path.with_suffix(".toml"), binary):
        with pytest.raises(UnknownHardwareError, match=re.escape(str(path))):
            load(path)


def test_save_writes_whole_files_or_none(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    save(load("cpu"), path)
    assert load(path) == load(str(path)) == load("cpu")
    broken = replace(load("cpu"), devices_per_host=0)
    with pytest.raises(ProfileError, match="devices_per_host"):
        save(broken, path)
    assert load(path) == load("cpu")
    with pytest.raises(ProfileError, match="no folder"):
        save(load("cpu"), tmp_path / "nowhere" / "mine.toml")
    with pytest.raises(ProfileError, match=r"named something\.toml"):
        save(load("cpu"), tmp_path / "mine.txt")
    with pytest.raises(ProfileError, match=r"it is a folder\. Name a file"):
        save(load("cpu"), tmp_path)
    with pytest.raises(
        ProfileError, match=r"Cannot write /proc/mine\.toml: .* where you may write"
    ):
        save(load("cpu"), "/proc/mine.toml")
    assert [file.name for file in tmp_path.iterdir()] == ["mine.toml"]


def test_the_profile_in_the_documentation_is_one() -> None:
    page = Path("docs/hardware.md").read_text()
    written = page.split("```toml\n")[1].split("```")[0]
    hardware = parse(written, "docs/hardware.md")
    assert hardware.device.name == "mine" and hardware.tiers[0].devices == 256


def test_a_device_without_a_profile_is_named_with_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = SimpleNamespace(name="NVIDIA H100 64GB HBM3", total_memory=68.7e9)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: found)
    with pytest.raises(UnknownHardwareError, match=r"'NVIDIA H100 64GB HBM3' with 68\.7 GB"):
        detect()


def test_a_kind_of_device_that_torch_has_not_is_refused() -> None:
    known = load("h100")
    for kind, instead in (("cudaa", "cuda"), ("GPU", "cuda"), ("tpu", "xla")):
        typo = replace(known, device=replace(known.device, kind=kind))
        with pytest.raises(
            ProfileError, match=f"'{kind}' is not a device of.*Did you mean '{instead}'"
        ):
            typo.check()


def test_other_dtypes_are_priced_as_float32_which_must_be_there() -> None:
    known = load("h100")
    lacking = replace(known, device=replace(known.device, flops_per_s={"bfloat16": 1e15}))
    with pytest.raises(ProfileError, match=r"no device\.flops_per_s\.float32"):
        lacking.check()


def test_a_profile_in_capitals_is_understood_as_meant() -> None:
    with pytest.raises(UnknownHardwareError, match="Did you mean 'h100'"):
        load("H100")
