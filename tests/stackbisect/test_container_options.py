"""Docker's option texts mean here what they mean to docker, and wrong ones are refused by name."""

from __future__ import annotations

import pytest

from stackbisect.probe import ContainerOptions
from stackbisect.runtimes import container_options as options
from stackbisect.runtimes.container_options import OptionError


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "type=bind,source=/data,target=/mnt,readonly",
            {"Type": "bind", "Source": "/data", "Target": "/mnt", "ReadOnly": True},
        ),
        (
            "type=bind,src=/a,dst=/b,ro=false,bind-propagation=rslave",
            {
                "Type": "bind",
                "Source": "/a",
                "Target": "/b",
                "ReadOnly": False,
                "BindOptions": {"Propagation": "rslave"},
            },
        ),
        (
            "src=cache,dst=/cache,volume-nocopy,volume-opt=o=size=1g",
            {
                "Type": "volume",
                "Source": "cache",
                "Target": "/cache",
                "ReadOnly": False,
                "VolumeOptions": {
                    "NoCopy": True,
                    "DriverConfig": {"Options": {"o": "size=1g"}},
                },
            },
        ),
        (
            "type=tmpfs,destination=/tmp,tmpfs-size=64m,tmpfs-mode=1777",
            {
                "Type": "tmpfs",
                "Target": "/tmp",
                "ReadOnly": False,
                "TmpfsOptions": {"SizeBytes": 64 << 20, "Mode": 0o1777},
            },
        ),
        (
            'type=bind,"src=/with,comma",dst=/b',
            {"Type": "bind", "Source": "/with,comma", "Target": "/b", "ReadOnly": False},
        ),
    ],
)
def test_mount_is_read_as_docker_reads_it(text: str, wanted: dict[str, object]) -> None:
    assert options.mount(text) == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("type=bind,dst=/b", "absolute source"),
        ("type=bind,src=./a,dst=/b", "absolute source"),
        ("type=volume,src=a", "expected a target"),
        ("type=bind,src=/a,dst=b", "absolute target"),
        ("type=nfs,src=/a,dst=/b", "bind, volume or tmpfs"),
        ("type=tmpfs,src=/a,dst=/b", "no source"),
        ("type=bind,src=/a,dst=/b,volume-nocopy", "do not belong"),
        ("type=bind,src=/a,dst=/b,size=1", "unknown key 'size'"),
        ("type=bind,src=/a,dst=/b,readonly=maybe", "true or false"),
        ("/a:/b", "expected key=value"),
        ("", "expected"),
    ],
)
def test_wrong_mount_is_refused_with_its_text(text: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        options.mount(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("all", {"Count": -1}),
        ("2", {"Count": 2}),
        ("device=1", {"DeviceIDs": ["1"]}),
        ('"device=0,GPU-3a"', {"DeviceIDs": ["0", "GPU-3a"]}),
        ("all,capabilities=utility", {"Count": -1, "Capabilities": [["gpu", "utility"]]}),
        ("driver=nvidia,count=1", {"Driver": "nvidia", "Count": 1}),
    ],
)
def test_gpus_are_read_as_docker_reads_them(text: str, wanted: dict[str, object]) -> None:
    plain = {"Driver": "", "Capabilities": [["gpu"]], "Options": {}}
    assert options.gpus(text) == {**plain, **wanted}


def test_unquoted_list_of_gpus_is_refused_with_the_quotes_it_needs() -> None:
    with pytest.raises(OptionError, match='"device=0,1"'):
        options.gpus("device=0,1")
    with pytest.raises(OptionError, match='"device=0,1"'):
        options.gpus("0,1")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("64m", 64 << 20), ("2g", 2 << 30), ("2GiB", 2 << 30), ("1.5k", 1536), ("100", 100)],
)
def test_sizes_are_powers_of_1024(text: str, wanted: int) -> None:
    assert options.size("--shm-size", text) == wanted


def test_ulimits_and_devices() -> None:
    assert options.ulimit("nofile=1024:2048") == {"Name": "nofile", "Soft": 1024, "Hard": 2048}
    assert options.ulimit("memlock=-1") == {"Name": "memlock", "Soft": -1, "Hard": -1}
    assert options.device("/dev/a:/dev/b:r")["CgroupPermissions"] == "r"
    assert options.device("/dev/a:rw") == {
        "PathOnHost": "/dev/a",
        "PathInContainer": "/dev/a",
        "CgroupPermissions": "rw",
    }
    for wrong in ("nofile", "nofile=many", "nofile=3:2", "memlock=-1:5"):
        with pytest.raises(OptionError, match="--ulimit"):
            options.ulimit(wrong)
    for wrong in ("dev/a", "/dev/a:b", "/dev/a:/dev/b:x", "/a:/b:r:w"):
        with pytest.raises(OptionError, match="--device"):
            options.device(wrong)


def test_named_devices_become_a_request_of_their_own() -> None:
    found = options.host_config(ContainerOptions(devices=("nvidia.com/gpu=0", "/dev/fuse")))
    assert found["DeviceRequests"] == [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0"]}]
    assert [device["PathOnHost"] for device in found["Devices"]] == ["/dev/fuse"]


def test_a_bare_variable_takes_its_value_here_and_must_have_one() -> None:
    given = ContainerOptions(env=("A=1=2", "B"))
    assert options.environment(given, {"B": "x", "C": "y"}) == {"A": "1=2", "B": "x"}
    with pytest.raises(OptionError, match="--env B"):
        options.environment(given, {})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("HF_TOKEN=abc", "HF_TOKEN=<hidden>"),
        ("WANDB_API_KEY=abc", "WANDB_API_KEY=<hidden>"),
        ("AWS_SECRET_ACCESS_KEY=abc", "AWS_SECRET_ACCESS_KEY=<hidden>"),
        ("PIP_INDEX_URL=https://me:pw@host/simple", "PIP_INDEX_URL=https://<hidden>@host/simple"),
        ("OMP_NUM_THREADS=1", "OMP_NUM_THREADS=1"),
        ("HF_TOKEN", "HF_TOKEN"),
    ],
)
def test_values_that_look_secret_are_hidden(text: str, shown: str) -> None:
    assert options.hide_secret(text) == shown


def test_every_way_to_pass_a_secret_is_kept_out_of_logs() -> None:
    variables = {"A_TOKEN": "token-value", "URL": "http://u:pass-word@h/", "BARE": "bare-value"}
    found = options.secret_values({**variables, "N": "plain-value"}, frozenset({"BARE"}))
    assert sorted(found) == ["bare-value", "token-value", "u:pass-word"]
