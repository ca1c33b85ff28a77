"""Test that launches.json, the record of kernel launches, states a reason for each of its changes."""

import hashlib
import json
from pathlib import Path


def test_launch_record_gives_reason_for_each_change():
    record = json.loads(Path(__file__).with_name("launches.json").read_text())
    text = json.dumps([record["torch"], record["launches"]], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    latest = record["changes"][-1]
    assert latest["digest"] == digest, f"append a change with its reason and the digest {digest}"
    assert len({change["digest"] for change in record["changes"]}) == len(record["changes"])
    assert all(change["reason"] for change in record["changes"])
