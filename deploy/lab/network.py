"""The bridge and a cable to each host, which can be cut, slowed or delayed."""

from __future__ import annotations

import ipaddress
import json
import subprocess

from lab.layout import INTERFACE, LOGIN, Lab, LabError


def sh(*argv: str, check: bool = True, text_in: str | None = None) -> str:
    """Run a command and return its output; LabError with its output if it fails."""
    done = subprocess.run(argv, input=text_in, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise LabError(f"`{' '.join(argv)}` ended with {done.returncode}: {said}")
    return done.stdout


def free_names() -> tuple[str, str]:
    """A bridge name and a subnet that nothing on this machine uses; raises LabError."""
    links = {link["ifname"] for link in json.loads(sh("ip", "-json", "link", "show"))}
    routes = [r["dst"] for r in json.loads(sh("ip", "-json", "route", "show", "table", "all"))]
    used = [ipaddress.ip_network(d) for d in routes if d != "default" and ":" not in d]
    for index in range(16):
        name, subnet = f"rslab{index}", ipaddress.ip_network(f"10.199.{index}.0/24")
        if name not in links and not any(subnet.overlaps(other) for other in used):
            return name, str(subnet)
    raise LabError("no free subnet among 10.199.0.0/24 to 10.199.15.0/24")


def add_bridge(lab: Lab) -> None:
    """The bridge with the login host's address."""
    prefix = ipaddress.ip_network(lab.subnet).prefixlen
    sh("ip", "link", "add", lab.bridge, "type", "bridge")
    sh("ip", "address", "add", f"{lab.address(LOGIN)}/{prefix}", "dev", lab.bridge)
    sh("ip", "link", "set", lab.bridge, "up")


def remove_bridge(lab: Lab) -> None:
    """End the bridge, and cables whose host is gone."""
    for host in lab.hosts:
        sh("ip", "link", "delete", lab.veth(host), check=False)
    sh("ip", "link", "delete", lab.bridge, check=False)


def plug(lab: Lab, host: str, pid: int) -> None:
    """Connect the host whose process 1 is `pid` on this machine to the bridge."""
    prefix = ipaddress.ip_network(lab.subnet).prefixlen
    veth = lab.veth(host)
    sh("ip", "link", "delete", veth, check=False)
    there = ("nsenter", f"--net=/proc/{pid}/ns/net", "ip")
    peer = ("peer", "name", INTERFACE, "netns", str(pid))
    sh("ip", "link", "add", veth, "type", "veth", *peer)
    sh("ip", "link", "set", veth, "master", lab.bridge, "up")
    sh(*there, "link", "set", "lo", "up")
    sh(*there, "address", "add", f"{lab.address(host)}/{prefix}", "dev", INTERFACE)
    sh(*there, "link", "set", INTERFACE, "up")


def set_link(lab: Lab, host: str, *, up: bool) -> None:
    """Cut the cable to a host, or mend it."""
    sh("ip", "link", "set", lab.veth(host), "up" if up else "down")


def shape(lab: Lab, host: str, pid: int, words: list[str]) -> None:
    """Shape both directions of a cable; an empty list ends the shaping.

    `rate 100mbit` alone needs a token bucket, which most kernels have; other options of `tc netem`
    (`delay 2ms`, `loss 1%`) need a kernel with netem. Raises LabError if the kernel lacks it.
    """
    discipline = ["netem", *words]
    if len(words) == 2 and words[0] == "rate":
        discipline = ["tbf", *words, "burst", "64kb", "latency", "50ms"]
    there = ("nsenter", f"--net=/proc/{pid}/ns/net")
    for where, device in (((), lab.veth(host)), (there, INTERFACE)):
        qdisc = (*where, "tc", "qdisc")
        if not words:
            sh(*qdisc, "delete", "dev", device, "root", check=False)
            continue
        try:
            sh(*qdisc, "replace", "dev", device, "root", *discipline)
        except LabError as error:
            if "qdisc kind is unknown" not in str(error):
                raise
            raise LabError(f"this kernel has no {discipline[0]}; `rate` alone needs none") from None
