"""What is measured, in this order. Each function returns a `Group`; its first words say what it measures."""

from api import api_group
from copies import create_group, size_group
from egress import egress_group
from inside import inside_group
from load import burst_group, idle_group
from review import approve_group, diff_group, layers_group
from start import fences_group, floor_group, start_group
from vessels import docker_group, microvm_group, oci_group

GROUPS = {
    "start": start_group,
    "floor": floor_group,
    "fences": fences_group,
    "create": create_group,
    "size": size_group,
    "diff": diff_group,
    "approve": approve_group,
    "layers": layers_group,
    "inside": inside_group,
    "egress": egress_group,
    "api": api_group,
    "burst": burst_group,
    "docker": docker_group,
    "oci": oci_group,
    "microvm": microvm_group,
    "idle": idle_group,
}
